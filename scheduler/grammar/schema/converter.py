"""A JSON schema as a grammar whose every text is valid JSON and valid under the schema."""

from typing import Any
from urllib.parse import unquote

import jsonschema
import referencing
import regex

from protocol.sampling import JsonWhitespace
from scheduler.grammar.schema.arrays import ArrayParts, array_expression, ordered_choice_expression
from scheduler.grammar.schema.characters import literal
from scheduler.grammar.schema.conjunction import Conjunction, Schema, conjunction, with_branch
from scheduler.grammar.schema.disjoint import exclude_each_other
from scheduler.grammar.schema.ebnf import GrammarText, choice
from scheduler.grammar.schema.errors import GrammarRefused, Path, Unsatisfiable, refused, unsatisfiable
from scheduler.grammar.schema.layout import layout
from scheduler.grammar.schema.members import (
    Members,
    anchors,
    implied_types,
    items_at,
    json_text,
    number_bound,
    property_members,
    required_names,
    without_values,
)
from scheduler.grammar.schema.numbers import integer_expression, multiple_expression, number_expression
from scheduler.grammar.schema.objects import ObjectParts, Property, object_expression
from scheduler.grammar.schema.strings import key_pattern, other_keys, plain_string, string_expression

MAX_DEPTH = 64
MAX_BRANCHES = 512

Key = tuple[int, ...]
"""The identities of schemas that hold together."""


def schema_grammar(schema: Schema, whitespace: JsonWhitespace, *, strict: bool) -> str:
    """The EBNF text; GrammarRefused names what is not supported. `strict`: objects are closed unless they say otherwise."""
    endless: set[Key] = set()
    while True:
        converter = SchemaConverter(schema, whitespace, strict=strict, endless=endless)
        text = converter.grammar.text(converter.value([(schema, ())]))
        found = converter.endless()
        if not found:
            return text
        endless |= found  # again, without them


class SchemaConverter:
    """Walks a schema. Each list of schemas that hold together has one rule, so recursion ends."""

    def __init__(self, root: Schema, whitespace: JsonWhitespace, *, strict: bool, endless: set[Key]) -> None:
        self.grammar = GrammarText()
        self._root = root
        self._layout = layout(whitespace, self.grammar)
        self._strict = strict
        error = Unsatisfiable("JSON schema: it requires itself without end, so no value is valid")
        self._rules: dict[Key, str | Unsatisfiable] = dict.fromkeys(endless, error)
        self._needs: dict[
            str, list[frozenset[str]]
        ] = {}  # by rule: for each of its forms, the rules it can't do without
        self._forms: list[list[frozenset[str]]] = []  # of the rules under way
        self._kept: list[Members] = []  # what the keys of `_rules` are the ids of
        self._depth = 0
        self._anchors = dict(anchors(root)) if isinstance(root, dict) else {}
        self._validator = jsonschema.Draft202012Validator(root, registry=referencing.Registry())

    def value(self, members: Members) -> str:
        """The rule of the values that all members allow."""
        key = tuple(id(schema) for schema, _ in members)
        known = self._rules.get(key)
        if isinstance(known, Unsatisfiable):
            raise known
        if known is not None:
            return known
        name = self.grammar.declare()
        self._rules[key] = name
        self._kept.append(members)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GrammarRefused(f"the JSON schema is nested more than {MAX_DEPTH} levels deep")
        self._forms.append([])
        try:
            self.grammar.define(name, self._alternatives(conjunction(members, self.resolve), members))
            self._needs[name] = self._forms[-1]
        except Unsatisfiable as error:
            self._rules[key] = error
            raise
        finally:
            self._depth -= 1
            self._forms.pop()
        return name

    def endless(self) -> set[Key]:
        """The keys of rules that no finite value fulfils: they require themselves."""
        ending: set[str] = set()
        while True:
            more = {name for name, forms in self._needs.items() if any(form <= ending for form in forms)}
            if more == ending:
                break
            ending = more
        return {key for key, name in self._rules.items() if isinstance(name, str) and name not in ending}

    def resolve(self, reference: str, path: Path) -> tuple[Schema, Path]:
        """The target of a $ref within this document."""
        if reference.startswith("#") and not reference.startswith("#/") and reference != "#":
            if reference[1:] not in self._anchors:
                raise refused("$ref", path, f"there is no anchor {reference!r}")
            return self._anchors[reference[1:]]
        if reference != "#" and not reference.startswith("#/"):
            raise refused("$ref", path, f"{reference!r} is not in this document")
        target: Any = self._root
        steps: list[str | int] = []
        for step in reference[2:].split("/") if reference != "#" else ():
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(step)] if isinstance(target, list) else target[step]
            except (KeyError, IndexError, ValueError, TypeError):
                raise refused("$ref", path, f"{reference!r} leads nowhere") from None
            steps.append(step)
        return target, tuple(steps)

    def _alternatives(self, found: Conjunction, members: Members) -> str:
        if found.values is not None:
            return self._listed(found, members)
        if found.only_beside_enum is not None:
            keyword, path = found.only_beside_enum
            raise refused(keyword, path, "is supported only beside enum or const")
        if not found.choices:
            return self._typed(found)
        keyword, branches = found.choices[0]
        if len(branches) > MAX_BRANCHES:
            raise refused(keyword, found.path, f"more than {MAX_BRANCHES} branches are not supported")
        options: list[tuple[str, Conjunction]] = []
        for branch, path in branches:
            try:
                taken = with_branch(found, branch, path, self.resolve)
                options.append((self._alternatives(taken, [*members, (branch, path)]), taken))
            except Unsatisfiable:
                continue
        if not options:
            raise unsatisfiable(found.path, f"no branch of {keyword} can be fulfilled")
        if keyword == "oneOf":
            self._check_exclusion([taken for _, taken in options], found.path)
        return choice([expression for expression, _ in options])

    def _check_exclusion(self, options: list[Conjunction], path: Path) -> None:
        for index, one in enumerate(options):
            for other in options[:index]:
                if not exclude_each_other(one, other, self.resolve):
                    raise refused("oneOf", path, "its branches can't be seen to exclude each other; use anyOf")

    def _listed(self, found: Conjunction, members: Members) -> str:
        """enum and const: the values that are valid under everything that stands beside them."""
        # Without the lists themselves: the values are from there, and looking each up would take quadratic time.
        validators = [self._validator.evolve(schema=without_values(schema)) for schema, _ in members]
        texts = []
        for value in found.values or ():
            try:
                if all(validator.is_valid(value) for validator in validators):
                    texts.append(json_text(value))
            except (ValueError, regex.error, referencing.exceptions.Unresolvable) as error:
                raise refused("enum", found.path, f"can't be checked: {error}") from None
        if not texts:
            raise unsatisfiable(found.path, "no value of the enum is left")
        self._forms[-1].append(frozenset())
        return choice([literal(text) for text in texts])

    def _typed(self, found: Conjunction) -> str:
        types = found.types if found.types is not None else implied_types(found)
        options = []
        failure: Unsatisfiable | None = None
        for name in sorted(types):
            try:
                options.append(self._of_type(name, found))
            except Unsatisfiable as error:
                failure = error
        if not options:
            raise failure or unsatisfiable(found.path, "no type is allowed")
        return choice(options)

    def _of_type(self, name: str, found: Conjunction) -> str:
        if name == "array":
            return self._array(found)
        if name == "object":
            return self._object(found)
        expression = self._scalar(name, found)
        self._forms[-1].append(frozenset())
        return expression

    def _scalar(self, name: str, found: Conjunction) -> str:
        match name:
            case "null":
                return '"null"'
            case "boolean":
                return '("true" | "false")'
            case "string":
                return string_expression(found, self.grammar)
        return self._number(found, whole=name == "integer")

    def _number(self, found: Conjunction, *, whole: bool) -> str:
        low, low_open = number_bound(found, "minimum", "exclusiveMinimum", 1)
        high, high_open = number_bound(found, "maximum", "exclusiveMaximum", -1)
        if not whole and not found.multiples:
            return number_expression(low, high, low_open, high_open, found.path)
        least = None if low is None else -(-low.numerator // low.denominator) + (low_open and low.denominator == 1)
        most = None if high is None else high.numerator // high.denominator - (high_open and high.denominator == 1)
        if least is not None and most is not None and most < least:
            raise unsatisfiable(found.path, "no whole number lies between the bounds")
        if found.multiples:
            return multiple_expression(found.multiples[0], least, most, self.grammar, found.path)
        return integer_expression(least, most, found.path)

    def _array(self, found: Conjunction) -> str:
        least = int(found.limits.get("minItems", 0))
        most = None if "maxItems" not in found.limits else int(found.limits["maxItems"])
        prefix_length = max((len(member.get("prefixItems", ())) for member, _ in found.arrays), default=0)
        prefix = []
        for index in range(prefix_length):
            try:
                prefix.append(self.value(items_at(found, index) or [(True, found.path)]))
            except Unsatisfiable:
                most = index if most is None else min(most, index)
                break
        tail_members = items_at(found, prefix_length)
        closed = found.closed_arrays or (
            self._strict and prefix_length > 0 and not tail_members and least <= prefix_length
        )
        if found.unique and (most is None or most > 1):
            return self._unique(found, tail_members, prefix_length, least, most)
        tail = None
        if not closed and len(prefix) == prefix_length and (most is None or most > prefix_length):
            try:
                tail = self.value(tail_members or [(True, found.path)])
            except Unsatisfiable:
                tail = None
        expression = array_expression(ArrayParts(found.path, prefix, tail, least, most), self._layout, self.grammar)
        needed = [*prefix[:least], *([tail] if tail is not None and least > prefix_length else [])]
        self._forms[-1].append(frozenset(needed))
        return expression

    def _unique(self, found: Conjunction, members: Members, prefix_length: int, least: int, most: int | None) -> str:
        values = conjunction(members, self.resolve).values if members and not prefix_length else None
        if values is None:
            raise refused(
                "uniqueItems", found.path, "is supported only for items with enum or const, or one item at most"
            )
        validators = [self._validator.evolve(schema=schema) for schema, _ in members]
        texts = [json_text(value) for value in values if all(each.is_valid(value) for each in validators)]
        items = [literal(text) for text in dict.fromkeys(texts)]
        self._forms[-1].append(frozenset())
        return ordered_choice_expression(items, least, most, self._layout, self.grammar, found.path)

    def _object(self, found: Conjunction) -> str:
        required = required_names(found)
        names = {name: None for member, _ in found.objects for name in member.get("properties", {})}
        names.update(dict.fromkeys(required))
        further_members, patterns, closed = self._further(found)
        listed = self._listed_names(found)
        if listed is not None and not closed:
            names.update(dict.fromkeys(listed))
            closed = True
        if found.names and not closed and names:
            raise refused("propertyNames", found.path, "beside properties is supported only without further properties")
        values = {name: self._property(found, name, required) for name in names}
        declared = [
            Property(f"{literal(json_text(name))} {self._layout.colon} {value}", name in required)
            for name, value in values.items()
            if value is not None
        ]
        further = None if closed else self._further_pair(found, set(names), further_members, patterns)
        least = int(found.limits.get("minProperties", 0))
        most = None if "maxProperties" not in found.limits else int(found.limits["maxProperties"])
        parts = ObjectParts(found.path, declared, further, least, most)
        expression = object_expression(parts, self._layout, self.grammar)
        self._forms[-1].append(frozenset(value for name in required if (value := values[name]) is not None))
        return expression

    def _property(self, found: Conjunction, name: str, required: dict[str, None]) -> str | None:
        """The rule of a property's values; None for one that must be left out."""
        if name not in required and any(other not in required for other in found.dependent.get(name, ())):
            return None
        try:
            for schema, path in found.names:
                if not self._validator.evolve(schema=schema).is_valid(name):
                    raise unsatisfiable(path, f"the required property {name!r} is no valid name")
            return self.value(property_members(found, name) or [(True, found.path)])
        except Unsatisfiable:
            if name in required:
                raise
            return None

    def _further(self, found: Conjunction) -> tuple[Members, list[str], bool]:
        """What further properties must obey, the patterns of their names, and whether there may be none."""
        members: Members = []
        patterns: list[str] = []
        open_ended = False
        for member, path in found.objects:
            for pattern, schema in member.get("patternProperties", {}).items():
                patterns.append(pattern)
                members.append((schema, (*path, "patternProperties", pattern)))
            if "patternProperties" in member:
                continue
            for keyword in ("additionalProperties", "unevaluatedProperties"):
                if keyword in member:
                    open_ended = True
                    members.append((member[keyword], (*path, keyword)))
        closed = found.closed_objects or (self._strict and not open_ended and not patterns)
        return members, patterns, closed or any(schema is False for schema, _ in members)

    def _listed_names(self, found: Conjunction) -> list[str] | None:
        """The names that propertyNames lists, None if it lists none."""
        if not found.names:
            return None
        values = conjunction(found.names, self.resolve).values
        return None if values is None else [value for value in values if isinstance(value, str)]

    def _further_pair(self, found: Conjunction, names: set[str], members: Members, patterns: list[str]) -> str | None:
        if len(set(patterns)) > 1 or (patterns and found.names):
            raise refused(
                "patternProperties", found.path, "more than one pattern (or propertyNames beside it) is not supported"
            )
        try:
            if patterns:
                if any(regex.search(patterns[0], name) for name in names):
                    raise refused("patternProperties", found.path, "its pattern matches a declared property")
                key = key_pattern(patterns[0], found.path, self.grammar)
            elif found.names:
                key = string_expression(conjunction(found.names, self.resolve), self.grammar)
            else:
                key = other_keys(names, self.grammar) if names else plain_string(self.grammar)
            return f"{key} {self._layout.colon} {self.value(members or [(True, found.path)])}"
        except Unsatisfiable:
            return None
        except regex.error as error:
            raise refused("patternProperties", found.path, str(error)) from None
