"""What the members of a conjunction say of one thing: a property, an item, a bound."""

import json
from fractions import Fraction
from typing import Any

import regex

from scheduler.grammar.schema.conjunction import ALL_TYPES, Conjunction, Schema
from scheduler.grammar.schema.errors import Path, refused

Members = list[tuple[Schema, Path]]

_IMPLIED = {
    "object": ("required", "objects", "names", "dependent", "closed_objects"),
    "array": ("arrays", "unique", "closed_arrays"),
    "string": ("patterns", "formats"),
    "number": ("multiples",),
}
_IMPLIED_LIMITS = {
    "object": ("minProperties", "maxProperties"),
    "array": ("minItems", "maxItems"),
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}


def anchors(root: dict[str, Any]) -> list[tuple[str, tuple[Schema, Path]]]:
    found: list[tuple[str, tuple[Schema, Path]]] = []
    waiting: list[tuple[Any, Path]] = [(root, ())]
    while waiting:
        value, path = waiting.pop()
        if isinstance(value, dict):
            if isinstance(value.get("$anchor"), str):
                found.append((value["$anchor"], (value, path)))
            waiting += [(inner, (*path, key)) for key, inner in value.items() if key not in ("enum", "const")]
        elif isinstance(value, list):
            waiting += [(inner, (*path, index)) for index, inner in enumerate(value)]
    return found


def implied_types(found: Conjunction) -> frozenset[str]:
    """Without a type, the types that the other keywords speak of; all, if they speak of none."""
    implied = {name for name, fields in _IMPLIED.items() if any(getattr(found, each) for each in fields)}
    implied |= {name for name, limits in _IMPLIED_LIMITS.items() if any(each in found.limits for each in limits)}
    return frozenset(implied) or ALL_TYPES


def number_bound(found: Conjunction, closed: str, open_: str, direction: int) -> tuple[Fraction | None, bool]:
    """The tighter of two bounds, and whether it is excluded."""
    best: tuple[Fraction, bool] | None = None
    for keyword in (closed, open_):
        if keyword not in found.limits:
            continue
        try:
            value = Fraction(str(found.limits[keyword]))
        except ValueError:
            raise refused(keyword, found.path, "is not a finite number") from None
        if best is None or (value - best[0]) * direction >= 0:
            best = (value, keyword == open_)
    return best or (None, False)


def required_names(found: Conjunction) -> dict[str, None]:
    """Required names, with what they make required."""
    required = dict(found.required)
    waiting = list(required)
    while waiting:
        for name in found.dependent.get(waiting.pop(), ()):
            if name not in required:
                required[name] = None
                waiting.append(name)
    return required


def items_at(found: Conjunction, index: int) -> Members:
    """What each member says of the item at this place."""
    members: Members = []
    for member, path in found.arrays:
        prefix = member.get("prefixItems", ())
        if index < len(prefix):
            members.append((prefix[index], (*path, "prefixItems", index)))
            continue
        for keyword in ("items", "unevaluatedItems"):
            if keyword in member:
                members.append((member[keyword], (*path, keyword)))
    return members


def property_members(found: Conjunction, name: str) -> Members:
    """What each member says of the property: its own schema, those of patterns, else that of further properties."""
    members: Members = []
    for member, path in found.objects:
        known = len(members)
        if name in member.get("properties", {}):
            members.append((member["properties"][name], (*path, "properties", name)))
        for pattern, schema in member.get("patternProperties", {}).items():
            if regex.search(pattern, name):
                members.append((schema, (*path, "patternProperties", pattern)))
        if len(members) == known and "additionalProperties" in member:
            members.append((member["additionalProperties"], (*path, "additionalProperties")))
    return members


def without_values(schema: Schema) -> Schema:
    return schema if isinstance(schema, bool) else {k: v for k, v in schema.items() if k not in ("enum", "const")}


def json_text(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
