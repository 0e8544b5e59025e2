"""Sets of Unicode characters, and how they are written in EBNF: as they are, or inside a JSON string."""

from collections.abc import Iterable
from dataclasses import dataclass

_LAST = 0x10FFFF
_JSON_ESCAPES = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x0C: "\\f", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}


@dataclass(frozen=True)
class CharacterSet:
    """Sorted, disjoint, non-adjacent ranges of code points (both ends included)."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> "CharacterSet":
        merged: list[tuple[int, int]] = []
        for low, high in sorted(ranges):
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], high))
            else:
                merged.append((low, high))
        return cls(tuple(merged))

    @classmethod
    def from_text(cls, characters: str) -> "CharacterSet":
        return cls.of((ord(character), ord(character)) for character in characters)

    def __or__(self, other: "CharacterSet") -> "CharacterSet":
        return CharacterSet.of((*self.ranges, *other.ranges))

    def __and__(self, other: "CharacterSet") -> "CharacterSet":
        return CharacterSet.of(
            (max(a, c), min(b, d)) for a, b in self.ranges for c, d in other.ranges if max(a, c) <= min(b, d)
        )

    def __sub__(self, other: "CharacterSet") -> "CharacterSet":
        return self & other.complement()

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, character: str) -> bool:
        return any(low <= ord(character) <= high for low, high in self.ranges)

    def complement(self) -> "CharacterSet":
        found, start = [], 0
        for low, high in self.ranges:
            if start < low:
                found.append((start, low - 1))
            start = high + 1
        if start <= _LAST:
            found.append((start, _LAST))
        return CharacterSet(tuple(found))


# Surrogates are no characters. A class that holds them would let broken UTF-8 through.
ALL = CharacterSet(((0, 0xD7FF), (0xE000, _LAST)))
ASCII = CharacterSet(((0, 0x7F),))
JSON_RAW = CharacterSet(((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, _LAST)))


def literal(text: str) -> str:
    """An EBNF string literal."""
    return '"' + "".join(map(_escaped, text)) + '"'


def character_class(characters: CharacterSet, *, counted: bool = False) -> str:
    """An EBNF class of these characters as they are, never of surrogates.

    A set with most of Unicode is written negated, and so is one that is repeated a counted number of times: xgrammar
    compiles and masks a negated class in milliseconds where the same one written out takes seconds.
    """
    characters &= ALL
    if characters and (counted or characters.ranges[-1][1] == _LAST):
        return f"[^{_ranges(characters.complement())}]"
    return f"[{_ranges(characters)}]"


def json_characters(characters: CharacterSet, *, counted: bool = False) -> str:
    """An EBNF expression for one of these characters inside a JSON string; each character in exactly one spelling.

    Characters that must be escaped are left out where there are others: repeated, the choice would make masks slow.
    "" if the set is empty.
    """
    raw = characters & JSON_RAW
    if raw:
        return character_class(raw, counted=counted)
    escapes = [literal(escape) for code, escape in _JSON_ESCAPES.items() if chr(code) in characters]
    controls = characters & CharacterSet(((0, 0x1F),))
    escapes = escapes or [literal(f"\\u{code:04x}") for low, high in controls.ranges for code in range(low, high + 1)]
    if len(escapes) > 1:
        return "(" + " | ".join(escapes) + ")"
    return escapes[0] if escapes else ""


def plain_characters(characters: CharacterSet, *, counted: bool = False) -> str:
    """An EBNF expression for one of these characters in plain text; NUL is none. "" if the set is empty."""
    characters = (characters & ALL) - CharacterSet(((0, 0),))
    return character_class(characters, counted=counted) if characters else ""


def _ranges(characters: CharacterSet) -> str:
    parts = []
    for low, high in characters.ranges:
        parts.append(_escaped(chr(low)) if low == high else f"{_escaped(chr(low))}-{_escaped(chr(high))}")
    return "".join(parts)


def _escaped(character: str) -> str:
    if character.isascii() and (character.isalnum() or character == " "):
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
