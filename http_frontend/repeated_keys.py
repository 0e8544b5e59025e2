"""Keys that stand more than once in an object of a JSON text: parsers keep the last and say nothing."""

import json
from collections.abc import Iterator
from typing import Any


def repeated_keys(raw: bytes, value: Any) -> list[str]:
    """Paths of the repeated keys of a valid JSON text whose parsed value this is; [] for nearly every text.

    A parser drops strings only where a key is repeated, that key at least. So counting the strings of both, which costs
    next to nothing, tells whether there are any; which ones only a slow parser can say.
    """
    # Once pairs of backslashes are gone, one before a quote escapes it.
    text = raw.replace(rb"\\", b"") if rb"\\" in raw else raw
    quotes = text.count(b'"') - text.count(rb"\"")
    if quotes == 2 * _count_strings(value):
        return []
    whole = json.loads(raw, object_pairs_hook=_Object, parse_int=len, parse_float=len)
    return list(dict.fromkeys(_paths(whole, "")))


def _count_strings(value: Any) -> int:
    """Keys and values."""
    count, left = 0, [value]
    while left:
        item = left.pop()
        if type(item) is str:
            count += 1
        elif type(item) is dict:
            count += len(item)
            left.extend(item.values())
        elif type(item) is list and not set(map(type, item)).isdisjoint(_WITH_STRINGS):
            left.extend(item)
    return count


_WITH_STRINGS = frozenset((str, dict, list))


class _Object(dict[str, Any]):
    """An object that knows which of its keys came more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated: tuple[str, ...] = ()
        if len(self) < len(pairs):
            seen: set[str] = set()
            self.repeated = tuple(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]


def _paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Object):
        for name in value.repeated:
            yield f"{path}.{name}" if path else name
        for name, inner in value.items():
            yield from _paths(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _paths(inner, f"{path}[{position}]")
