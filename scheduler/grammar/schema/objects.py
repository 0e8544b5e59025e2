"""Objects as expressions: declared properties in their order, then further ones."""

from dataclasses import dataclass

from scheduler.grammar.schema.ebnf import EMPTY, GrammarText, choice, repeat
from scheduler.grammar.schema.errors import Path, refused, unsatisfiable
from scheduler.grammar.schema.layout import Layout

_MAX_STATES = 20_000


@dataclass(frozen=True)
class Property:
    """`pair` is the expression of key, colon and value."""

    pair: str
    required: bool


@dataclass(frozen=True)
class ObjectParts:
    """`further` is the expression of one more pair, whose key is none of the declared ones; None if there may be none."""

    path: Path
    declared: list[Property]
    further: str | None
    least: int
    most: int | None


def object_expression(parts: ObjectParts, layout: Layout, grammar: GrammarText) -> str:
    """All objects of these parts with `least` to `most` properties."""
    return layout.enclosed('"{"', _Builder(parts, layout, grammar).body(), '"}"')


class _Builder:
    """Works from the last property to the first. A row holds, by how many properties came before, what may follow;
    None where nothing can. Counting ends where it makes no difference any more."""

    def __init__(self, parts: ObjectParts, layout: Layout, grammar: GrammarText) -> None:
        self._parts = parts
        self._layout = layout
        self._grammar = grammar
        required = sum(each.required for each in parts.declared)
        most = parts.most
        if most is not None and parts.further is None and most >= len(parts.declared):
            most = None
        self._least = parts.least if parts.least > required else 0
        self._most = most
        self._counts = max(1, self._least, 0 if most is None else most)
        if self._counts * (len(parts.declared) + 1) > _MAX_STATES:
            raise refused("maxProperties", parts.path, "together with so many properties is not supported")

    def body(self) -> str:
        row = [self._further(count) for count in range(self._counts + 1)]
        for each in reversed(self._parts.declared):
            row = [self._step(each, count, row) for count in range(self._counts + 1)]
        if row[0] is None:
            raise unsatisfiable(self._parts.path, "minProperties and maxProperties can't be fulfilled")
        return row[0]

    def _step(self, each: Property, count: int, row: list[str | None]) -> str | None:
        rest = row[min(count + 1, self._counts)]
        if self._most is not None and count >= self._most:
            rest = None
        options = []
        if rest is not None:
            pair = self._after(count, each.pair)
            options.append(pair if rest == EMPTY else f"{pair} {rest}")
        if not each.required and (without := row[count]) is not None:
            options.append(without)
        if not options:
            return None
        return options[0] if each.required else self._grammar.rule(choice(options))

    def _further(self, count: int) -> str | None:
        missing = self._least - count
        room = None if self._most is None else self._most - count
        further = self._parts.further
        if further is None or room == 0:
            return EMPTY if missing <= 0 and (room is None or room >= 0) else None
        if missing > 1:
            return None  # further keys may be equal: one is all that can be counted on
        following = self._grammar.rule(self._after(1, further))
        if count:
            return repeat(following, max(0, missing), room)
        rest = repeat(following, 0, None if room is None else room - 1)
        body = further if rest == EMPTY else f"{further} {rest}"
        return body if missing == 1 else self._grammar.rule(f"({body})?")

    def _after(self, count: int, pair: str) -> str:
        return f"{self._layout.comma} {pair}" if count else pair
