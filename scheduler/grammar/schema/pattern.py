"""Regular expressions, as JSON Schema recommends them (ECMA-262 without look-around), parsed into a small tree.

Where ECMA and Python disagree (`\\d`, `\\w`, `\\s`, `.`), a class means what both allow: a text of the grammar matches in
either. What is no regular language (back references) or looks around is refused, never dropped.
"""

import functools
import operator
from dataclasses import dataclass

from scheduler.grammar.schema.characters import ALL, ASCII, CharacterSet
from scheduler.grammar.schema.errors import GrammarRefused

MAX_REPEAT = 65_535

_DIGITS = CharacterSet.of([(0x30, 0x39)])
_WORD = CharacterSet.of([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
_SPACES = CharacterSet.from_text(" \t\n\r\f\v")
_ALL_SPACES = CharacterSet.of(
    (ord(character), ord(character))
    for character in "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
)
_DOT = ALL - CharacterSet.from_text("\n\r\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e")
_CLASSES = {
    "d": _DIGITS,
    "w": _WORD,
    "s": _SPACES,
    "D": ASCII - _DIGITS,
    "W": ASCII - _WORD,
    "S": ALL - _ALL_SPACES,
}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}


@dataclass(frozen=True)
class Characters:
    set: CharacterSet


@dataclass(frozen=True)
class Sequence:
    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Choice:
    options: tuple["Node", ...]


@dataclass(frozen=True)
class Repeat:
    part: "Node"
    least: int
    most: int | None


Node = Characters | Sequence | Choice | Repeat


@dataclass(frozen=True)
class Branch:
    """One top-level alternative. An open end may be followed (or preceded) by anything where patterns are searched."""

    node: Node
    open_start: bool
    open_end: bool


def parse_pattern(pattern: str) -> list[Branch]:
    """The top-level alternatives; GrammarRefused names what is not supported and where."""
    return _Parser(pattern).branches()


def lengths(node: Node) -> tuple[int, int | None]:
    """The fewest and the most characters of a match (None: no bound)."""
    if isinstance(node, Characters):
        return 1, 1
    if isinstance(node, Repeat):
        least, most = lengths(node.part)
        if most == 0 or node.most == 0:
            return least * node.least, 0
        return least * node.least, None if most is None or node.most is None else most * node.most
    bounds = [lengths(part) for part in (node.parts if isinstance(node, Sequence) else node.options)]
    mosts = [most for _, most in bounds if most is not None]
    unbounded = len(mosts) < len(bounds)
    if isinstance(node, Sequence):
        return sum(least for least, _ in bounds), None if unbounded else sum(mosts)
    return min(least for least, _ in bounds), None if unbounded else max(mosts)


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def branches(self) -> list[Branch]:
        found = [self._branch()]
        while self._take("|"):
            found.append(self._branch())
        if self._at < len(self._text):
            raise self._error("unbalanced )")
        return found

    def _branch(self) -> Branch:
        open_start = not self._take("^")
        node = self._sequence()
        return Branch(node, open_start, not self._take("$"))

    def _alternatives(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        sets = [option.set for option in options if isinstance(option, Characters)]
        if len(sets) == len(options):
            return Characters(functools.reduce(operator.or_, sets))  # one class is much cheaper than a choice
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if (
                self._text[self._at] == "$"
                and self._depth == 0
                and self._text[self._at + 1 : self._at + 2] in ("", "|")
            ):
                break
            parts.append(self._quantified(self._atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _quantified(self, atom: Node) -> Node:
        bounds = self._quantifier()
        if bounds is None:
            return atom
        self._take("?")  # a lazy repetition allows the same texts
        if self._quantifier() is not None:
            raise self._error("two quantifiers in a row are not supported")
        return Repeat(atom, *bounds)

    def _quantifier(self) -> tuple[int, int | None] | None:
        for symbol, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(symbol):
                return bounds
        if self._text[self._at : self._at + 1] != "{":
            return None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if end < 0 or not low.isdecimal() or not (high == "" or high.isdecimal()) or len(low) > 6 or len(high) > 6:
            raise self._error("a { that begins no repetition must be escaped")
        least = int(low)
        most = least if not comma else (int(high) if high else None)
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise self._error("the bounds of this repetition are not supported")
        self._at = end + 1
        return least, most

    def _atom(self) -> Node:
        character = self._text[self._at]
        self._at += 1
        if character == "(":
            return self._group()
        if character == "[":
            return Characters(self._class())
        if character == ".":
            return Characters(_DOT)
        if character == "\\":
            return Characters(self._escape(in_class=False))
        if character in "^$":
            raise self._error("an anchor inside a pattern is not supported")
        if character in "*+?{":
            raise self._error("nothing to repeat")
        return Characters(CharacterSet.from_text(character))

    def _group(self) -> Node:
        if self._take("?"):
            if self._take("<") and self._text[self._at : self._at + 1] not in ("=", "!"):
                end = self._text.find(">", self._at)
                if end < 0:
                    raise self._error("a group's name has no end")
                self._at = end + 1
            elif not self._take(":"):
                raise self._error("look-around and inline flags are not supported")
        self._depth += 1
        if self._depth > 100:
            raise self._error("groups are nested too deeply")
        node = self._alternatives()
        self._depth -= 1
        if not self._take(")"):
            raise self._error("a group has no end")
        return node

    def _class(self) -> CharacterSet:
        negated = self._take("^")
        found = CharacterSet(())
        only_ascii = False
        while True:
            if self._at >= len(self._text):
                raise self._error("a character class has no end")
            if self._take("]"):
                break
            self._refuse_set_operators()
            first, simple = self._class_item()
            if (
                simple
                and self._text[self._at : self._at + 1] == "-"
                and self._text[self._at + 1 : self._at + 2] not in ("]", "")
            ):
                self._at += 1
                last, last_simple = self._class_item()
                low, high = first.ranges[0][0], last.ranges[0][0]
                if not last_simple or high < low:
                    raise self._error("a range of a character class is not one")
                first = CharacterSet(((low, high),))
            elif not simple and negated:
                # The complement must hold for Unicode's digits and letters, too: ASCII is the safe part of it.
                only_ascii = only_ascii or first != _SPACES
                first = _ALL_SPACES if first == _SPACES else first
            found |= first
        if negated:
            found = (ASCII if only_ascii else ALL) - found
        return found & ALL

    def _refuse_set_operators(self) -> None:
        if self._text[self._at : self._at + 2] in ("&&", "--", "[:"):
            raise self._error("set operations and named classes are not supported")

    def _class_item(self) -> tuple[CharacterSet, bool]:
        """The characters, and whether they are a single one, which may begin a range."""
        character = self._text[self._at]
        self._at += 1
        if character != "\\":
            return CharacterSet.from_text(character), True
        found = self._escape(in_class=True)
        return found, len(found.ranges) == 1 and found.ranges[0][0] == found.ranges[0][1]

    def _escape(self, *, in_class: bool) -> CharacterSet:
        letter = self._text[self._at : self._at + 1]
        self._at += 1
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter in _CONTROLS and not (letter == "0" and self._text[self._at : self._at + 1].isdecimal()):
            return CharacterSet.from_text(_CONTROLS[letter])
        if letter == "b" and in_class:
            return CharacterSet.from_text("\b")
        if letter in ("x", "u"):
            return self._hexadecimal(2 if letter == "x" else 4)
        if not letter or letter.isalnum():
            raise self._error(f"the escape \\{letter} is not supported")
        return CharacterSet.from_text(letter)

    def _hexadecimal(self, digits: int) -> CharacterSet:
        if digits == 4 and self._take("{"):
            end = self._text.find("}", self._at)
            code, self._at = self._text[self._at : end], end + 1
        else:
            code = self._text[self._at : self._at + digits]
            self._at += digits
            if len(code) < digits:
                raise self._error("a hexadecimal escape is too short")
        try:
            value = int(code, 16)
        except ValueError:
            raise self._error("a hexadecimal escape has other characters") from None
        if value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
            raise self._error("surrogates are no characters")
        return CharacterSet(((value, value),))

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _error(self, reason: str) -> GrammarRefused:
        return GrammarRefused(f"regular expression, position {min(self._at, len(self._text))}: {reason}")
