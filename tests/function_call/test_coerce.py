"""Text to JSON by declared type, and the streaming form of the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from function_call.machinery.arguments import TextValue, ValueStyle
from function_call.machinery.coerce import coerce, declared_types
from function_call.machinery.json_text import JsonWriter, rewritten
from function_call.machinery.reader import Unreadable


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("00123", {"string"}, "00123"),
        (" true ", {"string"}, " true "),
        ("null", {"string"}, "null"),
        (" NULL ", {"string", "null"}, None),
        ("None", {"integer", "null"}, None),
        ("nulls", {"string", "null"}, "nulls"),
        ("-007", {"integer"}, -7),
        ("+5", {"integer"}, 5),
        ("5.0", {"integer"}, "5.0"),
        ("3", {"number"}, 3),
        ("3.0", {"number"}, 3.0),
        (".5", {"number"}, 0.5),
        ("1e999", {"number"}, "1e999"),
        ("nan", {"number"}, "nan"),
        ("True", {"boolean"}, True),
        ("yes", {"boolean"}, "yes"),
        ('{"a": [1,]}', {"object"}, {"a": [1]}),
        ("['a', None]", {"array"}, ["a", None]),
        ("[1", {"array"}, "[1"),
        ("5", {"array"}, "5"),
        ("5", {"string", "integer"}, 5),
        ("five", {"string", "integer"}, "five"),
        ("5", set(), "5"),
        ("²", {"integer"}, "²"),
    ],
)
def test_coerce(text: str, types: set[str], value: Any) -> None:
    assert json.loads(coerce(text, frozenset(types))) == value
    assert type(json.loads(coerce(text, frozenset(types)))) is type(value)


def test_integers_keep_all_their_digits() -> None:
    digits = "9" * 5000
    assert coerce(digits, frozenset({"integer"})) == digits


@pytest.mark.timeout(20)
@pytest.mark.parametrize("digit", ["0", "1", "-", ".", "1."])
def test_long_runs_of_digits_take_no_more_than_their_length(digit: str) -> None:
    """Half a million of each: an ambiguous pattern, or a conversion to a number, would take hours."""
    text = digit * 500_000
    for end in ("", "x", ".5", "e5"):
        for kind in ("integer", "number"):
            json.loads(coerce(text + end, frozenset({kind})), parse_int=str, parse_float=str)
        rewritten(text + end)


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}, {"integer", "null"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": True}, {"boolean"}),
        ({"oneOf": 5, "enum": "x", "type": 3}, set()),
        ({"$ref": "http://elsewhere"}, set()),
        ({}, set()),
        (True, set()),
        (None, set()),
    ],
)
def test_declared_types(schema: Any, types: set[str]) -> None:
    root = {"$defs": {"a": {"type": "integer"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]}}}
    assert declared_types(schema, root) == types


def test_a_schema_can_not_make_types_take_long() -> None:
    definitions = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(2000)}
    assert declared_types({"$ref": "#/$defs/d0"}, {"$defs": definitions}) == frozenset()


@given(
    text=st.text(alphabet="nulNUL \nabo&;amp<12", max_size=90),
    types=st.sampled_from([{"string"}, {"string", "null"}, {"integer"}, {"null", "boolean"}, set()]),
    style=st.builds(
        ValueStyle,
        trim=st.sampled_from(["nothing", "newline", "blanks"]),
        entities=st.booleans(),
        undeclared_json=st.booleans(),
    ),
    cuts=st.lists(st.integers(0, 90), max_size=6),
)
def test_a_value_in_pieces_is_the_value(text: str, types: set[str], style: ValueStyle, cuts: list[int]) -> None:
    def value(pieces: list[str]) -> str:
        out: list[str] = []
        reader = TextValue(out.append, frozenset(types), style)
        for piece in pieces:
            reader.write(piece)
        reader.finish()
        return "".join(out)

    places = sorted(cuts)
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert value(pieces) == value([text])
    json.loads(value([text]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=json_values, indent=st.sampled_from([None, 2]), ascii_only=st.booleans())
def test_valid_json_keeps_its_meaning(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    written = rewritten(text)
    assert written is not None
    assert json.loads(written) == json.loads(text)


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(alphabet='ab "\n\\é', max_size=6),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet="ab", max_size=3), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_python_literals_are_read(value: Any) -> None:
    written = rewritten(repr(value))
    assert written is not None and json.loads(written) == value


@given(text=st.text(alphabet="{}[]()\"'\\:,u0 nultrefasx\n", max_size=60), python=st.booleans())
def test_what_is_written_is_always_the_beginning_of_json(text: str, python: bool) -> None:
    """Whatever comes: a value that is complete is valid, whole or by character."""
    results = []
    for pieces in ([text], list(text)):
        out: list[str] = []
        writer = JsonWriter(out.append, python=python)
        try:
            for piece in pieces:
                if not writer.done:
                    writer.feed(piece, 0)
            if not writer.done:
                writer.finish()
        except Unreadable:
            results.append(("unreadable", "".join(out)))
            continue
        results.append((str(writer.done), "".join(out)))
        if writer.done:
            json.loads("".join(out))
    assert results[0] == results[1]
