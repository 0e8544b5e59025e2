"""Patterns against `re`: what the grammar takes, a search finds; and nothing else is dropped without a word."""

import re
from typing import Any

import pytest
import xgrammar

from scheduler.grammar.schema.characters import ALL, ASCII, JSON_RAW, CharacterSet, character_class, json_characters
from scheduler.grammar.schema.converter import schema_grammar
from scheduler.grammar.schema.errors import GrammarRefused
from scheduler.grammar.schema.pattern import Sequence, lengths, parse_pattern
from scheduler.grammar.source import regex_grammar

TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "ba",
    "aab",
    "abc",
    "a1",
    "1a",
    "12",
    "a b",
    " ",
    "a,b",
    "é",
    "xéy",
    "A",
    "aA",
    "日本",
    "😀",
    "-",
    "_",
    "a\nb",
    "\t",
]


def takes(grammar: xgrammar.CompiledGrammar, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(grammar)
    return bool(matcher.accept_string(text) and matcher.is_completed()) if text else bool(matcher.is_completed())


@pytest.mark.parametrize(
    "pattern",
    [
        "a",
        "a*b",
        "(ab|b)+",
        "a{2}b?",
        "[a-c]+",
        "[^a]",
        r"\d+",
        r"\w+",
        "a|b|",
        "(?:a(?P=x)?|é)?".replace("(?P=x)", "b"),
        "a{0,1}[bA]",
        r"\x61\u0062",
    ],
)
def test_a_regex_takes_the_whole_text(writer: Any, pattern: str) -> None:
    grammar = writer.compile(regex_grammar(pattern))
    for text in TEXTS:
        if text.isascii() or "^" not in pattern:
            assert takes(grammar, text) == (re.fullmatch(pattern, text, re.ASCII) is not None), text


@pytest.mark.parametrize("pattern", ["a", "^a", "b$", "^a|b$", "^[^,]*$", "a.?b", "^$", r"\d", r"^\S+$"])
def test_a_schema_pattern_is_searched_for(writer: Any, pattern: str) -> None:
    grammar = writer.compile(schema_grammar({"type": "string", "pattern": pattern}, "compact", strict=True))
    for text in TEXTS:
        if text.isprintable():  # others have to be escaped, which classes leave to single characters
            assert takes(grammar, f'"{text}"') == (re.search(pattern, text) is not None), text


@pytest.mark.parametrize("pattern", ["^[^a]{1,3}$", "^.*$", "^[^x]+y$"])
@pytest.mark.parametrize(
    "data",
    [
        b"\xe0\x88\x92",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xc0\x80",
        b"\x80",
        b"\x01",
        b"\n",
        b'"',
        b"\\",
    ],
)
def test_no_pattern_lets_broken_json_through(writer: Any, pattern: str, data: bytes) -> None:
    grammar = writer.compile(schema_grammar({"type": "string", "pattern": pattern}, "compact", strict=True))
    matcher = xgrammar.GrammarMatcher(grammar)
    assert matcher.accept_string(b'"')
    accepted = matcher.accept_string(data)
    assert not accepted or data == b'"'


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("(a", 2),
        ("a)", 1),
        ("[a", 2),
        ("a{3,1}", 1),
        ("*a", 1),
        (r"\p{L}", 2),
        ("(?=a)", 2),
        ("a^b", 2),
        ("a**", 3),
        ("[b-a]", 4),
        (r"\ud800", 6),
        ("x{99999}", 1),
    ],
)
def test_what_is_not_supported_is_named_with_its_place(pattern: str, position: int) -> None:
    with pytest.raises(GrammarRefused, match=f"position {position}:"):
        parse_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("abc", (3, 3)),
        ("a*", (0, None)),
        ("(ab|c){2,3}", (2, 6)),
        ("a?b+", (1, None)),
        ("", (0, 0)),
        ("(?<n>ab)?", (0, 2)),
    ],
)
def test_lengths(pattern: str, expected: tuple[int, int | None]) -> None:
    assert lengths(Sequence((parse_pattern(pattern)[0].node,))) == expected


def test_sets() -> None:
    letters = CharacterSet.from_text("abcx")
    assert letters.ranges == ((97, 99), (120, 120))
    assert (letters - CharacterSet.from_text("b")).ranges == ((97, 97), (99, 99), (120, 120))
    assert letters.complement().complement() == letters
    assert (ALL & CharacterSet(((0xD800, 0xDFFF),))).ranges == ()
    assert character_class(letters) == "[a-cx]"
    assert character_class(JSON_RAW).startswith("[^")
    assert json_characters(CharacterSet.from_text('"')) == '"\\u005c\\u0022"'
    assert json_characters(CharacterSet(())) == ""
    assert not ASCII - ALL
