"""Text to JSON by the declared type of a parameter, for formats that write arguments as bare text."""

import json
import re
from collections.abc import Mapping
from typing import Any

from function_call.machinery.json_text import LOOSE_FLOAT, number, rewritten

INTEGER = re.compile(r"[+-]?[0-9]+")

TYPE_OF = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
STRING_ONLY = frozenset({"string"})
NULLABLE_STRING = frozenset({"string", "null"})
ANY_JSON = frozenset({"json"})
"""For formats that write down that a value is JSON, without its type."""
LONGEST_CHAIN = 32
Schema = Mapping[str, Any]


def declared_types(schema: Any, root: Schema) -> frozenset[str]:
    """The types that a schema admits, local references followed; empty if it declares none.

    Each reference is followed once, however often it is named, and without recursion: a schema can't make this take long.
    """
    found: set[str] = set()
    followed: set[str] = set()
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Mapping):
            continue
        reference = node.get("$ref")
        if isinstance(reference, str):
            if reference not in followed:
                followed.add(reference)
                waiting.append(_resolve(reference, root))
            continue
        declared = node.get("type")
        if isinstance(declared, str):
            found.add(declared)
        elif isinstance(declared, list):
            found.update(name for name in declared if isinstance(name, str))
        else:
            branches = [branch for key in ("anyOf", "oneOf", "allOf") for branch in _listed(node.get(key))]
            waiting.extend(branches)
            if not branches:
                found.update(map(_type_of, _listed(node.get("enum", [node["const"]] if "const" in node else []))))
    return frozenset(found)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _type_of(value: Any) -> str:
    return "null" if value is None else TYPE_OF.get(type(value), "string")


def _resolve(reference: str, root: Schema) -> Any:
    if not reference.startswith("#"):
        return None
    node: Any = root
    for part in reference[1:].strip("/").split("/"):
        if part:
            node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
    return node


def resolved(schema: Any, root: Schema) -> Any:
    """The schema that a chain of local references ends at."""
    for _ in range(LONGEST_CHAIN):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        schema = _resolve(schema["$ref"], root)
    return schema


def property_schema(schema: Schema, key: str, root: Schema) -> Any:
    """The schema of one property, through a reference of the whole; None if it is not declared."""
    schema = resolved(schema, root)
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties.get(key) if isinstance(properties, Mapping) else None


def coerce(text: str, types: frozenset[str], *, undeclared_json: bool = False) -> str:
    """The JSON text of `text` read as one of the types; as a string if nothing fits.

    `undeclared_json`: a parameter without a declared type is JSON if it reads as such.
    """
    if types == STRING_ONLY:
        return json.dumps(text, ensure_ascii=False)
    trimmed = text.strip()
    if types == ANY_JSON:
        value = rewritten(trimmed)
        return json.dumps(text, ensure_ascii=False) if value is None else value
    if "null" in types and trimmed.lower() in ("null", "none"):
        return "null"
    if not types and undeclared_json:
        value = rewritten(trimmed)
        return json.dumps(text, ensure_ascii=False) if value is None else value
    if "integer" in types and INTEGER.fullmatch(trimmed):
        return number(trimmed) or trimmed
    if "number" in types and LOOSE_FLOAT.fullmatch(trimmed):
        literal = number(trimmed)
        if literal is not None:
            return literal
    if "boolean" in types and trimmed.lower() in ("true", "false"):
        return trimmed.lower()
    if ("object" in types and trimmed[:1] == "{") or ("array" in types and trimmed[:1] in ("[", "(")):
        value = rewritten(trimmed)
        if value is not None:
            return value
    return json.dumps(text, ensure_ascii=False)
