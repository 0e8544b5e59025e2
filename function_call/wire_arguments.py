"""The arguments of a constrained call, in the notation of its format."""

import json
from collections.abc import Mapping
from typing import Any

from function_call.machinery.coerce import declared_types, resolved
from function_call.machinery.wire import Wire

Format = dict[str, Any]
MOST_BLANKS = 16
"""Blanks in a row inside JSON: enough for a pretty-printed object, too few for a model that has lost its way."""
PYTHON_STRING = r"'[^'\\\n\r]*'"
PYTHON_WORDS = {"boolean": ("True", "False"), "null": ("None",)}


class Inexpressible(Exception):
    """This notation can't express the schema; the message says why."""


def arguments_format(wire: Wire, schema: Mapping[str, Any]) -> Format:
    """A structural-tag format for an object of this schema."""
    match wire.style:
        case "elements":
            return _elements(wire, schema)
        case "python":
            return _keywords(schema)
        case style:
            return {
                "type": "json_schema",
                "json_schema": dict(schema),
                "style": style,
                "max_whitespace_cnt": MOST_BLANKS,
            }


def _properties(schema: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
    """(key, schema, required) in the declared order. Inexpressible unless the keys are known."""
    whole = resolved(schema, schema)
    properties = whole.get("properties") if isinstance(whole, Mapping) else None
    closed = isinstance(whole, Mapping) and not any(
        k in whole for k in ("anyOf", "oneOf", "allOf", "patternProperties")
    )
    if not closed or not isinstance(properties, Mapping):
        raise Inexpressible("arguments whose keys the schema leaves open can't be written in this format")
    required = whole.get("required", ())
    if set(required) - set(properties):
        raise Inexpressible("a required parameter is not declared")
    return [(key, value, key in required) for key, value in properties.items()]


def _standalone(value: Any, root: Mapping[str, Any]) -> Any:
    """A property's schema with the definitions that it may refer to."""
    if not isinstance(value, Mapping):
        return value
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**shared, **value}


def _elements(wire: Wire, schema: Mapping[str, Any]) -> Format:
    before, after = wire.element
    elements: list[Format] = []
    for key, value, required in _properties(schema):
        types = declared_types(value, schema)
        text = "string" in types or not types
        begin = before.replace("{key}", key).replace("{is_string}", "true" if text else "false")
        content: Format = _bare_text(value, schema) if text else _json(value, schema)
        element = {"type": "tag", "begin": begin, "content": content, "end": after}
        elements.append(element if required else {"type": "optional", "content": element})
    return {"type": "sequence", "elements": elements} if elements else {"type": "const_string", "value": ""}


def _bare_text(value: Any, root: Mapping[str, Any]) -> Format:
    whole = resolved(value, root)
    if isinstance(whole, Mapping):
        if "enum" in whole or "const" in whole:
            values = whole.get("enum", [whole.get("const")])
            texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
            return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in texts]}
        if isinstance(whole.get("pattern"), str):
            return {"type": "regex", "pattern": whole["pattern"]}
    return {"type": "any_text"}


def _json(value: Any, root: Mapping[str, Any]) -> Format:
    return {"type": "json_schema", "json_schema": _standalone(value, root), "max_whitespace_cnt": MOST_BLANKS}


def _keywords(schema: Mapping[str, Any]) -> Format:
    """`key=value, other=value`: required ones first, so that every comma is certain. Values are JSON, which Python's readers
    of this notation take as well, or Python's own words and single-quoted strings."""
    required: list[Format] = []
    optional: list[Format] = []
    for key, value, needed in _properties(schema):
        if not key.isidentifier():
            raise Inexpressible(f"{key!r} can't be a keyword argument")
        keyword: Format = {
            "type": "sequence",
            "elements": [{"type": "const_string", "value": f"{key}="}, _python_value(value, schema)],
        }
        (required if needed else optional).append(keyword)
    comma = {"type": "const_string", "value": ", "}

    def more(keywords: list[Format]) -> list[Format]:
        return [{"type": "optional", "content": {"type": "sequence", "elements": [comma, k]}} for k in keywords]

    if required:
        joined = [required[0]]
        for keyword in required[1:]:
            joined.extend((comma, keyword))
        return {"type": "sequence", "elements": [*joined, *more(optional)]}
    if not optional:
        return {"type": "const_string", "value": ""}
    starts = [
        {"type": "sequence", "elements": [keyword, *more(optional[i + 1 :])]} for i, keyword in enumerate(optional)
    ]
    return {"type": "optional", "content": {"type": "or", "elements": starts}}


def _python_value(value: Any, root: Mapping[str, Any]) -> Format:
    types = declared_types(value, root)
    choices: list[Format] = [_json(value, root)]
    for kind, words in PYTHON_WORDS.items():
        if kind in types:
            choices.extend({"type": "const_string", "value": word} for word in words)
    whole = resolved(value, root)
    if "string" in types and isinstance(whole, Mapping) and set(whole) <= {"type", "description", "title", "default"}:
        choices.append({"type": "regex", "pattern": PYTHON_STRING})
    return choices[0] if len(choices) == 1 else {"type": "or", "elements": choices}
