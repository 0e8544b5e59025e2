"""The one grammar of a request, from whichever spelling it came in. What only a grammar compiler can judge is judged
by the scheduler at admission."""

from typing import Any

import msgspec

from http_frontend.contract.kinds import refuse
from protocol.errors import RequestError
from protocol.sampling import GrammarKind, GrammarSpec, JsonWhitespace
from runtime.engine_config import EngineConfig

# field -> kind, for the fields whose value is the grammar itself
SPELLINGS: tuple[tuple[str, GrammarKind], ...] = (
    ("regex", "regex"),
    ("ebnf", "ebnf"),
    ("json_schema", "json_schema"),
    ("structural_tag", "structural_tag"),
    ("guided_json", "json_schema"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "ebnf"),
    ("guided_json_object", "json_object"),
)
NESTED_SPELLINGS: tuple[tuple[str, GrammarKind], ...] = (
    ("json", "json_schema"),
    ("regex", "regex"),
    ("choice", "choice"),
    ("grammar", "ebnf"),
    ("json_object", "json_object"),
    ("structural_tag", "structural_tag"),
)


# type of a response_format -> what else belongs to it
BELONGS: dict[str, tuple[str, ...]] = {
    "text": (),
    "json_object": ("schema",),
    "json_schema": ("json_schema", "schema"),
    "structural_tag": ("structures", "triggers", "format"),
    "regex": ("pattern",),
    "ebnf": ("grammar",),
}


def grammar_of(fields: dict[str, Any], config: EngineConfig) -> GrammarSpec | None:
    """The constraint that the body asks for; RequestError if it asks for two, or for one that can't be read."""
    whitespace: JsonWhitespace = fields.get("json_whitespace", config.args.json_whitespace)
    nested = fields.get("structured_outputs", {})
    if nested.get("disable_any_whitespace"):
        whitespace = "compact"
    found: list[GrammarSpec] = []

    def add(kind: GrammarKind, value: Any, field: str, strict: bool = True) -> None:
        if kind == "json_object":
            if value is False:
                return
            value = ""
        found.append(GrammarSpec(kind, grammar_text(kind, value, field), field, whitespace, strict))

    for name, kind in SPELLINGS:
        if name in fields:
            add(kind, fields[name], name)
    for name, kind in NESTED_SPELLINGS:
        if name in nested:
            add(kind, nested[name], f"structured_outputs.{name}")
    response_format = fields.get("response_format")
    if response_format is not None:
        for name in response_format:
            if name != "type" and name not in BELONGS[response_format["type"]]:
                refuse(f"response_format.{name}", f"does not belong to the type {response_format['type']}")
        if response_format["type"] != "text":
            add(*_read_response_format(response_format))
    if len(found) > 1:
        names = " and ".join(spec.field for spec in found)
        raise RequestError(f"{names}: give one constraint only", param=found[1].field, code="invalid_value")
    return found[0] if found else None


def grammar_text(kind: GrammarKind, value: Any, field: str) -> str:
    """The value as `GrammarSpec.text`. Schemas keep the order of their keys."""
    if kind in ("json_schema", "structural_tag"):
        if isinstance(value, str):
            try:
                value = msgspec.json.decode(value)
            except (msgspec.DecodeError, RecursionError) as error:
                refuse(field, f"is not valid JSON: {error}")
            if not isinstance(value, (dict, bool)):
                refuse(field, "must be a JSON object")
        if value is False:
            refuse(field, "the schema false allows nothing")
        return msgspec.json.encode(value).decode()
    if kind == "choice":
        return msgspec.json.encode(value).decode()
    if kind == "regex" and "\0" in value:
        refuse(field, "must not hold NUL")
    assert isinstance(value, str)
    return value


def _read_response_format(given: dict[str, Any]) -> tuple[GrammarKind, Any, str, bool]:
    """(kind, value, field, strict) of a response_format that is not text."""
    kind: GrammarKind = given["type"]
    if kind == "json_object":
        # Some clients put a schema beside json_object; it is a constraint, so it is never dropped.
        if "schema" in given:
            return "json_schema", given["schema"], "response_format.schema", True
        return "json_object", True, "response_format", True
    if kind == "json_schema":
        described = given.get("json_schema", {})
        if "schema" in described:
            return (
                "json_schema",
                described["schema"],
                "response_format.json_schema.schema",
                described.get("strict", True),
            )
        if "schema" in given:
            return "json_schema", given["schema"], "response_format.schema", True
        refuse("response_format.json_schema.schema", "is required for this type", "missing_required_parameter")
    if kind == "structural_tag":
        if "format" not in given and ("structures" not in given or "triggers" not in given):
            refuse("response_format.format", "is required for this type", "missing_required_parameter")
        return "structural_tag", given, "response_format", True
    field = "pattern" if kind == "regex" else "grammar"
    if field not in given:
        refuse(f"response_format.{field}", "is required for this type", "missing_required_parameter")
    return kind, given[field], f"response_format.{field}", True
