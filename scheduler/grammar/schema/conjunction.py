"""Several schemas that must hold at once (a schema, the target of its $ref, the members of its allOf) as one."""

import copy
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scheduler.grammar.schema.errors import GrammarRefused, Path, refused, unsatisfiable
from scheduler.grammar.schema.keywords import ONLY_BESIDE_ENUM, TYPES, check_keywords

Schema = dict[str, Any] | bool
Resolve = Callable[[str, Path], tuple[Schema, Path]]

_LARGEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


@dataclass
class Conjunction:
    """What all members say together. Sub-schemas stand with the path that errors name."""

    path: Path
    types: frozenset[str] | None = None
    limits: dict[str, Any] = field(default_factory=dict)  # the larger minimum, the smaller maximum
    multiples: list[int] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    objects: list[tuple[dict[str, Any], Path]] = field(default_factory=list)  # members that speak of properties
    arrays: list[tuple[dict[str, Any], Path]] = field(default_factory=list)  # members that speak of items
    required: dict[str, None] = field(default_factory=dict)
    dependent: dict[str, list[str]] = field(default_factory=dict)
    names: list[tuple[Schema, Path]] = field(default_factory=list)
    values: list[Any] | None = None  # enum and const
    unique: bool = False
    closed_objects: bool = False  # unevaluatedProperties: false
    closed_arrays: bool = False
    choices: list[tuple[str, list[tuple[Schema, Path]]]] = field(default_factory=list)  # anyOf and oneOf
    only_beside_enum: tuple[str, Path] | None = None


def conjunction(schemas: list[tuple[Schema, Path]], resolve: Resolve) -> Conjunction:
    """Takes in $ref and allOf; anyOf and oneOf stay choices. Unsatisfiable where a member is false."""
    found = Conjunction(schemas[0][1])
    for schema, path in schemas:
        _take_in(found, schema, path, resolve, len(schemas) == 1, frozenset())
    return found


def with_branch(found: Conjunction, branch: Schema, path: Path, resolve: Resolve) -> Conjunction:
    """The conjunction with one branch of its first choice taken in."""
    copied = copy.copy(found)
    for each in dataclasses.fields(Conjunction):
        value = getattr(found, each.name)
        if isinstance(value, list | dict):
            setattr(copied, each.name, value.copy())
    copied.dependent = {name: list(others) for name, others in found.dependent.items()}
    del copied.choices[0]
    _take_in(copied, branch, path, resolve, False, frozenset())
    return copied


def _take_in(
    found: Conjunction, schema: Schema, path: Path, resolve: Resolve, alone: bool, seen: frozenset[str]
) -> None:
    if isinstance(schema, bool):
        if not schema:
            raise unsatisfiable(path, "false allows nothing")
        return
    if not isinstance(schema, dict):
        raise GrammarRefused(
            f"JSON schema: {type(schema).__name__} where a schema must be, at {'/'.join(map(str, path))}"
        )
    check_keywords(schema, path)
    _unevaluated(schema, path, alone)
    own = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", "anyOf", "oneOf")}
    _scalars(found, own, path)
    _structure(found, own, path)
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            branches = [(branch, (*path, keyword, index)) for index, branch in enumerate(schema[keyword])]
            found.choices.append((keyword, branches))
    if "$ref" in schema:
        reference = schema["$ref"]
        if reference in seen:
            raise refused("$ref", path, f"{reference!r} refers to itself without end")
        target, target_path = resolve(reference, path)
        _take_in(found, target, target_path, resolve, False, seen | {reference})
    for index, member in enumerate(schema.get("allOf", ())):
        _take_in(found, member, (*path, "allOf", index), resolve, False, seen)


def _unevaluated(schema: dict[str, Any], path: Path, alone: bool) -> None:
    for keyword, plain in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if keyword not in schema or schema[keyword] is True:
            continue
        if not alone or plain in schema or any(key in schema for key in ("anyOf", "oneOf", "allOf", "$ref")):
            if schema[keyword] is False and alone:
                continue  # handled where the members are put together: nothing beyond what they declare
            raise refused(keyword, path, "is supported only where no allOf, anyOf, oneOf or $ref is involved")


def _scalars(found: Conjunction, schema: dict[str, Any], path: Path) -> None:
    if "type" in schema:
        named = schema["type"]
        types = frozenset([named] if isinstance(named, str) else named)
        found.types = _common_types(found.types, types)
        if not found.types:
            raise unsatisfiable(path, "no type is left")
    for keywords, better in ((_LARGEST, max), (_SMALLEST, min)):
        for keyword in keywords:
            if keyword in schema:
                value = schema[keyword]
                found.limits[keyword] = better(found.limits[keyword], value) if keyword in found.limits else value
    if "multipleOf" in schema:
        value = schema["multipleOf"]
        if value <= 0 or not float(value).is_integer():
            raise refused("multipleOf", path, "only whole numbers from 1 on are supported")
        found.multiples = [math.lcm(int(value), *found.multiples)]
    for keyword, texts in (("pattern", found.patterns), ("format", found.formats)):
        if keyword in schema and schema[keyword] not in texts:
            texts.append(schema[keyword])
    values = schema.get("enum")
    if "const" in schema:
        constant = schema["const"]
        values = [constant] if values is None else [value for value in values if same(value, constant)]
    if values is not None:
        known = found.values
        found.values = values if known is None else [value for value in known if any(same(value, v) for v in values)]


def _structure(found: Conjunction, schema: dict[str, Any], path: Path) -> None:
    if any(
        key in schema for key in ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties")
    ):
        found.objects.append((schema, path))
    if any(key in schema for key in ("prefixItems", "items", "unevaluatedItems")):
        found.arrays.append((schema, path))
    found.closed_objects = found.closed_objects or schema.get("unevaluatedProperties") is False
    found.closed_arrays = found.closed_arrays or schema.get("unevaluatedItems") is False
    found.required.update(dict.fromkeys(schema.get("required", ())))
    for name, others in schema.get("dependentRequired", {}).items():
        found.dependent.setdefault(name, []).extend(others)
    if "propertyNames" in schema:
        found.names.append((schema["propertyNames"], (*path, "propertyNames")))
    found.unique = found.unique or schema.get("uniqueItems", False)
    for keyword in ONLY_BESIDE_ENUM:
        if keyword in schema and found.only_beside_enum is None:
            found.only_beside_enum = (keyword, path)


def _common_types(known: frozenset[str] | None, types: frozenset[str]) -> frozenset[str]:
    if known is None:
        return types
    common = known & types
    for one, other in ((known, types), (types, known)):
        if "number" in one and "integer" in other:
            common |= {"integer"}
    return common - {"integer"} if "number" in common else common


def same(one: Any, other: Any) -> bool:
    """Equality of JSON values: true is not 1, but 1.0 is."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


ALL_TYPES = frozenset(TYPES) - {"integer"}
