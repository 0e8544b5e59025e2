"""Whether two branches of oneOf can be seen to exclude each other; no value is then valid under both."""

from typing import Any

from scheduler.grammar.schema.conjunction import ALL_TYPES, Conjunction, Resolve, Schema, conjunction, same
from scheduler.grammar.schema.errors import GrammarRefused, Path

_MAX_DEPTH = 4


def exclude_each_other(one: Conjunction, other: Conjunction, resolve: Resolve, depth: int = 0) -> bool:
    """True only if it is certain: by values, by types, or by a required property. False where it can't be seen."""
    if one.values is not None and other.values is not None:
        return not any(same(a, b) for a in one.values for b in other.values)
    for listed, free in ((one, other), (other, one)):
        if listed.values is not None and free.types is not None:
            return not any(_has_type(value, free.types) for value in listed.values)
    types, other_types = one.types or ALL_TYPES, other.types or ALL_TYPES
    if not _overlap(types, other_types):
        return True
    only_objects = frozenset(("object",))
    if one.types != only_objects or other.types != only_objects or depth > _MAX_DEPTH:
        return False
    return _excluded_by_property(one, other, resolve, depth)


def _excluded_by_property(one: Conjunction, other: Conjunction, resolve: Resolve, depth: int) -> bool:
    for name in one.required:
        if name in other.required:
            ours, theirs = _property(one, name), _property(other, name)
            if ours and theirs and _excluded(ours, theirs, resolve, depth):
                return True
        elif _forbids(other, name):
            return True
    return any(name not in one.required and _forbids(one, name) for name in other.required)


def _excluded(ours: list[tuple[Schema, Path]], theirs: list[tuple[Schema, Path]], resolve: Resolve, depth: int) -> bool:
    try:
        return exclude_each_other(conjunction(ours, resolve), conjunction(theirs, resolve), resolve, depth + 1)
    except GrammarRefused:
        return False


def _property(found: Conjunction, name: str) -> list[tuple[Schema, Path]]:
    return [
        (member["properties"][name], (*path, "properties", name))
        for member, path in found.objects
        if name in member.get("properties", {})
    ]


def _forbids(found: Conjunction, name: str) -> bool:
    return any(
        member.get("additionalProperties") is False
        and name not in member.get("properties", {})
        and not member.get("patternProperties")
        for member, _ in found.objects
    )


def _overlap(one: frozenset[str], other: frozenset[str]) -> bool:
    numbers = {"number", "integer"}
    return bool(one & other) or bool(one & numbers and other & numbers)


def _has_type(value: Any, types: frozenset[str]) -> bool:
    if isinstance(value, bool):
        return "boolean" in types
    if value is None:
        return "null" in types
    if isinstance(value, int | float):
        return "number" in types or ("integer" in types and float(value).is_integer())
    names: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return names[type(value)] in types
