"""Arrays as expressions: a prefix of places with schemas of their own, then a tail of like items."""

from dataclasses import dataclass

from scheduler.grammar.schema.ebnf import EMPTY, GrammarText, choice, repeat
from scheduler.grammar.schema.errors import Path, unsatisfiable
from scheduler.grammar.schema.layout import Layout


@dataclass(frozen=True)
class ArrayParts:
    """`tail` is the expression of an item after the prefix, None if there may be none."""

    path: Path
    prefix: list[str]
    tail: str | None
    least: int
    most: int | None


def array_expression(parts: ArrayParts, layout: Layout, grammar: GrammarText) -> str:
    """All arrays of these parts with `least` to `most` items."""
    most = parts.most
    if parts.tail is None:
        most = len(parts.prefix) if most is None else min(most, len(parts.prefix))
    if most is not None and most < parts.least:
        raise unsatisfiable(parts.path, f"at most {most} items are possible, {parts.least} are asked for")
    prefix = parts.prefix if most is None else parts.prefix[:most]
    body = _tail(parts, len(prefix), most, layout, grammar)
    for index in reversed(range(len(prefix))):
        item = prefix[index] if index == 0 else f"{layout.comma} {prefix[index]}"
        body = item if body == EMPTY else f"{item} {body}"
        if index >= parts.least:
            body = grammar.rule(f"({body})?")
    return layout.enclosed('"["', body, '"]"')


def ordered_choice_expression(
    values: list[str], least: int, most: int | None, layout: Layout, grammar: GrammarText, path: Path
) -> str:
    """Arrays of different values (uniqueItems), which stand in the order of the schema."""
    highest = len(values) if most is None else min(most, len(values))
    if highest < least:
        raise unsatisfiable(path, f"there are not {least} different items")
    rows: list[str | None] = [EMPTY if count >= least else None for count in range(highest + 1)]
    for value in reversed(values):
        following: list[str | None] = []
        for count in range(highest + 1):
            options = []
            if count < highest and (rest := rows[count + 1]) is not None:
                item = value if count == 0 else f"{layout.comma} {value}"
                options.append(item if rest == EMPTY else f"{item} {rest}")
            if (rest := rows[count]) is not None:
                options.append(rest)
            following.append(grammar.rule(choice(options)) if options else None)
        rows = following
    assert rows[0] is not None
    return layout.enclosed('"["', rows[0], '"]"')


def _tail(parts: ArrayParts, before: int, most: int | None, layout: Layout, grammar: GrammarText) -> str:
    least = max(0, parts.least - before)
    room = None if most is None else most - before
    if parts.tail is None or room == 0:
        return EMPTY
    following = grammar.rule(f"{layout.comma} {parts.tail}")
    if before:
        return repeat(following, least, room)
    rest = repeat(following, max(0, least - 1), None if room is None else room - 1)
    body = parts.tail if rest == EMPTY else f"{parts.tail} {rest}"
    return body if least else grammar.rule(f"({body})?")
