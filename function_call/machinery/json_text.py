"""JSON as models write it, read piece by piece and written again as strict JSON while it grows.

Tolerated: raw control characters in strings, commas before a closing bracket, single quotes and Python's literals.
Written: one form, `{"key": "value", "other": [1, 2]}`, non-ASCII characters as themselves. What is written is always the
beginning of a valid JSON text, and none of it is taken back.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Literal

from function_call.machinery.reader import Unreadable

DEEPEST = 200
"""Nesting beyond this is hostile: Python's own reader, and others', would refuse what came of it."""

Write = Callable[[str], None]

BLANKS = re.compile(r"\s*")
ATOM = re.compile(r"[^\s,:\[\]{}()\"']*")
JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
LOOSE_INTEGER = re.compile(r"([+-]?)([0-9]+)")
LOOSE_FLOAT = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""No two parts of these can match the same characters: on a long run of digits they would try every split."""
WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
STRING_PREFIXES = frozenset({"f", "r", "b", "u", "F", "R", "B", "U"})
SIMPLE_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"', "'": "'"}
HEX_LENGTHS = {"u": 4, "x": 2, "U": 8}
HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
PLAIN = {quote: re.compile(rf"[^\\{quote}]*") for quote in ("'", '"')}


def escaped(text: str) -> str:
    """The text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def number(text: str) -> str | None:
    """The JSON form of a decimal literal, None if it isn't a finite one. Integers keep all their digits."""
    if JSON_NUMBER.fullmatch(text):
        return text if text.lstrip("-").isdecimal() or _finite(text) else None
    if integer := LOOSE_INTEGER.fullmatch(text):
        sign, digits = integer[1], integer[2].lstrip("0") or "0"
        return ("-" if sign == "-" and digits != "0" else "") + digits
    if LOOSE_FLOAT.fullmatch(text) and _finite(text):
        return repr(float(text))
    return None


def _finite(text: str) -> bool:
    return math.isfinite(float(text))


class StringReader:
    """The rest of a quoted string, after its opening quote; decoded characters go to `write`.

    `lenient`: a quote ends the string only if a delimiter follows it, for models that do not escape quotes.
    """

    def __init__(self, quote: str, write: Write, lenient: bool) -> None:
        self.done = False
        self._quote = quote
        self._plain = PLAIN[quote]
        self._write = write
        self._lenient = lenient
        self._escape = ""
        self._closing: list[str] = []
        self._high_surrogate = 0

    def feed(self, text: str, start: int) -> int:
        at = start
        while at < len(text) and not self.done:
            if self._escape:
                at = self._feed_escape(text, at)
            elif self._closing:
                at = self._feed_closing(text, at)
            else:
                found = self._plain.match(text, at)
                end = found.end() if found else at
                if end > at:
                    self._put(text[at:end], at)
                    at = end
                elif text[at] == "\\":
                    self._escape = "\\"
                    at += 1
                else:
                    at += 1
                    if self._lenient:
                        self._closing = [self._quote]
                    else:
                        self._end()
        return at

    def finish(self) -> None:
        if self._closing:
            self._end()

    def _feed_closing(self, text: str, at: int) -> int:
        found = BLANKS.match(text, at)
        end = found.end() if found else at
        self._closing.append(text[at:end])
        if end < len(text):
            if text[end] in ",)]}:":
                self._end()
            else:
                literal = "".join(self._closing)
                self._closing = []
                self._put(literal, end)
        return end

    def _feed_escape(self, text: str, at: int) -> int:
        character = text[at]
        kind = self._escape[1:2] or character
        if kind in SIMPLE_ESCAPES:
            self._escape = ""
            self._put(SIMPLE_ESCAPES[kind], at + 1)
            return at + 1
        if kind not in HEX_LENGTHS or (len(self._escape) > 1 and character not in HEX_DIGITS):
            literal, self._escape = self._escape, ""
            self._put(literal, at)
            return at
        self._escape += character
        if len(self._escape) == HEX_LENGTHS[kind] + 2:
            code = int(self._escape[2:], 16)
            self._escape = ""
            self._put_code(code, at + 1)
        return at + 1

    def _put_code(self, code: int, at: int) -> None:
        if self._high_surrogate and 0xDC00 <= code < 0xE000:
            code = 0x10000 + ((self._high_surrogate - 0xD800) << 10) + (code - 0xDC00)
            self._high_surrogate = 0
        elif 0xD800 <= code < 0xDC00:
            self._flush_surrogate(at)
            self._high_surrogate = code
            return
        lone = 0xDC00 <= code < 0xE000 or code > 0x10FFFF
        self._put("\ufffd" if lone else chr(code), at)

    def _put(self, text: str, at: int) -> None:
        """`at`: where the text stands in what is being fed, for the position of a failure further in."""
        self._flush_surrogate(at)
        try:
            self._write(text)
        except Unreadable as error:
            raise Unreadable(at + error.at) from None

    def _flush_surrogate(self, at: int) -> None:
        if self._high_surrogate:
            self._high_surrogate = 0
            self._put("\ufffd", at)

    def _end(self) -> None:
        self._flush_surrogate(0)
        self.done = True


class JsonWriter:
    """Reads one value and writes it as strict JSON; a `Machine`.

    `python`: the value is a Python literal: tuples, and quotes inside strings that nobody has escaped.
    """

    def __init__(self, write: Write, *, python: bool = False) -> None:
        self.done = False
        self._write = write
        self._python = python
        self._closers: list[str] = []
        self._counts: list[int] = []
        self._state: Literal["value", "item", "key", "colon", "next"] = "value"
        self._string: StringReader | None = None
        self._string_is_key = False
        self._atom: list[str] = []

    def feed(self, text: str, start: int) -> int:
        at = start
        while at < len(text) and not self.done:
            if self._string is not None:
                at = self._string.feed(text, at)
                if self._string.done:
                    self._end_string()
            elif self._atom:
                at = self._feed_atom(text, at)
            else:
                found = BLANKS.match(text, at)
                at = found.end() if found else at
                if at < len(text):
                    at = self._feed_token(text, at)
        return at

    def finish(self) -> None:
        if self._atom:
            self._end_atom(0)
        elif self._string is not None:
            self._string.finish()
            if self._string.done:
                self._end_string()

    def _feed_token(self, text: str, at: int) -> int:
        character = text[at]
        if self._closers and character == self._closers[-1] and self._state in ("item", "key", "next"):
            self._write("}" if self._closers.pop() == "}" else "]")
            self._counts.pop()
            self._value_done()
        elif self._state == "colon":
            if character != ":":
                raise Unreadable(at)
            self._write(": ")
            self._state = "value"
        elif self._state == "next":
            if character != ",":
                raise Unreadable(at)
            self._state = "key" if self._closers[-1] == "}" else "item"
        elif character in "\"'":
            self._begin_string(character)
        elif self._state == "key":
            raise Unreadable(at)
        elif character in "{[" or (character == "(" and self._python):
            self._open(character, at)
        else:
            return self._feed_atom(text, at)
        return at + 1

    def _open(self, bracket: str, at: int) -> None:
        if len(self._closers) == DEEPEST:
            raise Unreadable(at)
        self._begin_item()
        self._write("{" if bracket == "{" else "[")
        self._closers.append({"{": "}", "[": "]", "(": ")"}[bracket])
        self._counts.append(0)
        self._state = "key" if bracket == "{" else "item"

    def _begin_item(self) -> None:
        """Before an array's item or an object's key: the comma, now that it is known to be needed."""
        if self._counts and self._state in ("item", "key"):
            if self._counts[-1]:
                self._write(", ")
            self._counts[-1] += 1

    def _begin_string(self, quote: str) -> None:
        self._begin_item()
        self._string_is_key = self._state == "key"
        self._write('"')
        lenient = self._python or quote == "'"
        self._string = StringReader(quote, lambda text: self._write(escaped(text)), lenient)

    def _end_string(self) -> None:
        self._string = None
        self._write('"')
        if self._string_is_key:
            self._state = "colon"
        else:
            self._value_done()

    def _feed_atom(self, text: str, at: int) -> int:
        found = ATOM.match(text, at)
        end = found.end() if found else at
        if end > at:
            self._atom.append(text[at:end])
        if end < len(text):
            if text[end] in "\"'" and "".join(self._atom) in STRING_PREFIXES and self._python:
                self._atom = []
                self._begin_string(text[end])
                return end + 1
            self._end_atom(end)
        return end

    def _end_atom(self, at: int) -> None:
        atom = "".join(self._atom)
        self._atom = []
        literal = WORDS.get(atom) or number(atom)
        if literal is None:
            raise Unreadable(at)
        self._begin_item()
        self._write(literal)
        self._value_done()

    def _value_done(self) -> None:
        if self._closers:
            self._state = "next"
        else:
            self.done = True


def rewritten(text: str) -> str | None:
    """The whole text as strict JSON, None if it is neither JSON nor a Python literal."""
    for python in (False, True):
        parts: list[str] = []
        writer = JsonWriter(parts.append, python=python)
        try:
            end = writer.feed(text, 0)
            if not writer.done:
                writer.finish()
        except Unreadable:
            continue
        if writer.done and not text[end:].strip():
            return "".join(parts)
    return None
