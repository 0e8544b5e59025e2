"""From what a request asks for to what xgrammar compiles. Runs in the compile worker: the texts are hostile."""

import json
from typing import Any, Literal

import msgspec

from protocol.sampling import GrammarSpec, JsonWhitespace
from scheduler.grammar.schema.characters import literal, plain_characters
from scheduler.grammar.schema.converter import schema_grammar
from scheduler.grammar.schema.ebnf import GrammarText, choice, pattern_expression
from scheduler.grammar.schema.errors import GrammarRefused
from scheduler.grammar.schema.pattern import parse_pattern


class GrammarSource(msgspec.Struct, frozen=True):
    """A grammar as text, in one of the forms that xgrammar reads."""

    form: Literal["ebnf", "lark", "structural_tag"]
    text: str


def grammar_source(spec: GrammarSpec) -> GrammarSource:
    """Raises GrammarRefused with a sentence for the client."""
    if "\0" in spec.text:
        raise GrammarRefused("the grammar contains a NUL character")
    match spec.kind:
        case "json_object":
            return GrammarSource("ebnf", schema_grammar({"type": "object"}, spec.whitespace, strict=False))
        case "json_schema":
            return GrammarSource("ebnf", _json_schema(_parsed(spec.text, "JSON schema"), spec.whitespace, spec.strict))
        case "regex":
            return GrammarSource("ebnf", regex_grammar(spec.text))
        case "choice":
            return GrammarSource("ebnf", _choices(_parsed(spec.text, "choice")))
        case "structural_tag":
            tag = _structural_tag(_parsed(spec.text, "structural tag"), spec.whitespace, spec.strict)
            return GrammarSource("structural_tag", json.dumps(tag))
    # GBNF defines rules by "::=", Lark by ":".
    return GrammarSource("ebnf" if "::=" in spec.text else "lark", spec.text)


def regex_grammar(pattern: str) -> str:
    """The pattern as a whole text; `^` and `$` at its ends say what holds anyway."""
    grammar = GrammarText()
    options = [pattern_expression(branch.node, plain_characters, grammar) for branch in parse_pattern(pattern)]
    return grammar.text(choice(options))


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise GrammarRefused(f"the {what} is nested too deeply") from None
    except ValueError as error:
        raise GrammarRefused(f"the {what} is not JSON: {error}") from None


def _json_schema(schema: Any, whitespace: JsonWhitespace, strict: bool) -> str:
    if not isinstance(schema, dict | bool):
        raise GrammarRefused("a JSON schema is an object or a boolean")
    try:
        return schema_grammar(schema, whitespace, strict=strict)
    except RecursionError:
        raise GrammarRefused("the JSON schema is nested too deeply") from None


def _choices(values: Any) -> str:
    if not isinstance(values, list) or not values or not all(isinstance(value, str) and value for value in values):
        raise GrammarRefused("choice must be a list of strings, none of them empty")
    return f"root ::= {choice([literal(value) for value in values])}\n"


def _structural_tag(tag: Any, whitespace: JsonWhitespace, strict: bool) -> dict[str, Any]:
    """Either generation as the newer one, its JSON schemas and patterns turned into grammars of ours."""
    if not isinstance(tag, dict):
        raise GrammarRefused("a structural tag is an object")
    if "structures" in tag:
        tag = {"type": "structural_tag", "format": _from_structures(tag)}
    if not isinstance(tag.get("format"), dict):
        raise GrammarRefused('a structural tag has "format", or "structures" and "triggers"')
    try:
        return {"type": "structural_tag", "format": _format(tag["format"], whitespace, strict)}
    except RecursionError:
        raise GrammarRefused("the structural tag is nested too deeply") from None


def _from_structures(tag: dict[str, Any]) -> dict[str, Any]:
    tags = []
    structures = tag["structures"]
    for structure in structures if isinstance(structures, list) else ():
        if not isinstance(structure, dict) or not {"begin", "end"} <= structure.keys():
            raise GrammarRefused('each of the "structures" has "begin", "schema" and "end"')
        content = {"type": "json_schema", "json_schema": structure.get("schema", True)}
        tags.append({"type": "tag", "begin": structure["begin"], "content": content, "end": structure["end"]})
    if not tags or not isinstance(tag.get("triggers"), list):
        raise GrammarRefused('a structural tag with "structures" needs at least one, and a list of "triggers"')
    return {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}


def _format(value: Any, whitespace: JsonWhitespace, strict: bool) -> Any:
    """The format with every schema and pattern in it replaced; what it nests in is left to xgrammar to check."""
    if isinstance(value, list):
        return [_format(each, whitespace, strict) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "json_schema" and "json_schema" in value:
        schema = value["json_schema"]
        text = _json_schema(json.loads(schema) if isinstance(schema, str) else schema, whitespace, strict)
        # Other styles are written by xgrammar; going through ours has refused what it would not enforce.
        return {"type": "grammar", "grammar": text} if value.get("style", "json") == "json" else value
    if value.get("type") == "qwen_xml_parameter" and "json_schema" in value:
        _json_schema(value["json_schema"], whitespace, strict)
        return value
    if value.get("type") == "regex" and isinstance(value.get("pattern"), str) and not value.get("excludes"):
        return {"type": "grammar", "grammar": regex_grammar(value["pattern"])}
    return {key: _format(each, whitespace, strict) for key, each in value.items()}
