"""Compiled grammars by what was asked for: the least recently used go when their bytes are too many."""

from collections import OrderedDict
from typing import Generic, TypeVar

from protocol.sampling import GrammarSpec

Value = TypeVar("Value")


class GrammarCache(Generic[Value]):
    """`field` of a spec is where an error points to, and no part of the key."""

    def __init__(self, limit_bytes: int) -> None:
        self.bytes = 0
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[tuple[str, ...], tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: tuple[str, ...]) -> Value | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: tuple[str, ...], value: Value, size_bytes: int) -> None:
        """Keeps the newest entry even if it alone is over the limit."""
        former = self._entries.pop(key, None)
        if former is not None:
            self.bytes -= former[1]
        self._entries[key] = (value, size_bytes)
        self.bytes += size_bytes
        while self.bytes > self._limit_bytes and len(self._entries) > 1:
            _, (_, oldest_bytes) = self._entries.popitem(last=False)
            self.bytes -= oldest_bytes


def cache_key(spec: GrammarSpec) -> tuple[str, ...]:
    return (spec.kind, spec.text, spec.whitespace, str(spec.strict))
