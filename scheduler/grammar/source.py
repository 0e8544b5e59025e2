"""From what a request asks for to what xgrammar compiles. Runs in the compile worker: the texts are hostile."""

import json
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from protocol.sampling import GrammarSpec, JsonWhitespace
from scheduler.grammar.schema.characters import literal, plain_characters
from scheduler.grammar.schema.converter import schema_grammar
from scheduler.grammar.schema.ebnf import GrammarText, choice, pattern_expression
from scheduler.grammar.schema.errors import GrammarRefused
from scheduler.grammar.schema.pattern import parse_pattern

TokenId = Callable[[str], int | None]


class GrammarSource(msgspec.Struct, frozen=True):
    """A grammar as text, in one of the forms that xgrammar reads."""

    form: Literal["ebnf", "lark", "structural_tag"]
    text: str


def grammar_source(spec: GrammarSpec, token_id: TokenId) -> GrammarSource:
    """Raises GrammarRefused with a sentence for the client. `token_id` finds a token by its name."""
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
            tag = _StructuralTag(spec.whitespace, spec.strict, token_id).converted(_parsed(spec.text, "structural tag"))
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


def _from_structures(tag: dict[str, Any]) -> dict[str, Any]:
    """The older generation as the newer one."""
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


class _StructuralTag:
    """Turns the JSON schemas and patterns of a structural tag into grammars of ours, and names of tokens into ids. How its
    formats nest is left to xgrammar to check."""

    def __init__(self, whitespace: JsonWhitespace, strict: bool, token_id: TokenId) -> None:
        self._whitespace = whitespace
        self._strict = strict
        self._token_id = token_id

    def converted(self, tag: Any) -> dict[str, Any]:
        if not isinstance(tag, dict):
            raise GrammarRefused("a structural tag is an object")
        form = _from_structures(tag) if "structures" in tag else tag.get("format")
        if not isinstance(form, dict):
            raise GrammarRefused('a structural tag has "format", or "structures" and "triggers"')
        try:
            return {"type": "structural_tag", "format": self._format(form)}
        except RecursionError:
            raise GrammarRefused("the structural tag is nested too deeply") from None

    def _format(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._format(each) for each in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("type")
        if kind in ("json_schema", "qwen_xml_parameter") and "json_schema" in value:
            return self._schema(value)
        if kind == "regex" and isinstance(value.get("pattern"), str) and not value.get("excludes"):
            return {"type": "grammar", "grammar": regex_grammar(value["pattern"])}
        converted = {key: self._format(each) for key, each in value.items()}
        if kind == "token":
            converted["token"] = self._token(value.get("token"))
        for key in ("trigger_tokens", "exclude_tokens"):
            if isinstance(value.get(key), list):
                converted[key] = [self._token(each) for each in value[key]]
        if kind == "token_dispatch" and isinstance(value.get("rules"), list):
            converted["rules"] = [[self._token(rule[0]), *rule[1:]] for rule in converted["rules"] if rule]
        return converted

    def _schema(self, value: dict[str, Any]) -> dict[str, Any]:
        schema = value["json_schema"]
        if isinstance(schema, str):
            schema = _parsed(schema, "JSON schema")
        text = _json_schema(schema, self._whitespace, self._strict)
        if value["type"] == "json_schema" and value.get("style", "json") == "json":
            return {"type": "grammar", "grammar": text}
        return value  # xgrammar writes the other styles; ours has refused what it would not enforce

    def _token(self, token: Any) -> Any:
        if not isinstance(token, str):
            return token
        found = self._token_id(token)
        if found is None:
            raise GrammarRefused(f"{token!r} is no token of the model")
        return found
