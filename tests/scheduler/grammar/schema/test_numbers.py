"""Bounds, checked against every number near them: the expressions are small enough to be read as regular expressions."""

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.grammar.schema.ebnf import GrammarText
from scheduler.grammar.schema.errors import GrammarRefused, Unsatisfiable
from scheduler.grammar.schema.numbers import MAX_DIGITS, integer_expression, multiple_expression, number_expression


def as_pattern(expression: str) -> re.Pattern[str]:
    def piece(match: re.Match[str]) -> str:
        return f"(?:{re.escape(match[1])})" if match[1] is not None else ""

    return re.compile(re.sub(r'"([^"]*)"| ', piece, expression))


@settings(max_examples=150, deadline=None)
@given(st.integers(-1200, 1200), st.integers(0, 1500), st.sampled_from(["both", "low", "high"]))
def test_whole_numbers(low: int, span: int, bounds: str) -> None:
    high = low + span
    least, most = (None if bounds == "high" else low), (None if bounds == "low" else high)
    pattern = as_pattern(integer_expression(least, most, ()))
    for number in range(low - 120, high + 121):
        inside = (least is None or number >= least) and (most is None or number <= most)
        assert (pattern.fullmatch(str(number)) is not None) is inside, number
    assert pattern.fullmatch("-0") is None or (least is None and most is None)
    assert pattern.fullmatch("007") is None
    assert (pattern.fullmatch("9" * MAX_DIGITS) is not None) is (most is None)


hundredths = st.integers(-500, 500).map(lambda number: Fraction(number, 100))


@settings(max_examples=100, deadline=None)
@given(hundredths, hundredths, st.booleans(), st.booleans())
def test_decimals(one: Fraction, other: Fraction, low_open: bool, high_open: bool) -> None:
    low, high = min(one, other), max(one, other)
    try:
        pattern = as_pattern(number_expression(low, high, low_open, high_open, ()))
    except Unsatisfiable:
        assert low == high and (low_open or high_open)
        return
    for number in range(-5100, 5101, 7):
        text = f"{number / 1000:.3f}"
        value = Fraction(text)
        inside = (value > low if low_open else value >= low) and (value < high if high_open else value <= high)
        if not (text.startswith("-") and value == 0):
            assert (pattern.fullmatch(text) is not None) is inside, text
    assert pattern.fullmatch("00.1") is None


@pytest.mark.parametrize(("low", "high"), [(0.5, None), (None, -0.125), (0.0, 1.0)])
def test_one_bound_or_none(low: float | None, high: float | None) -> None:
    bounds = [None if bound is None else Fraction(str(bound)) for bound in (low, high)]
    pattern = as_pattern(number_expression(bounds[0], bounds[1], False, False, ()))
    for text in ("0", "0.5", "0.4999", "0.75", "1", "1.5", "12345.678", "-0.125", "-0.1249", "-7", "-7.25"):
        value = float(text)
        inside = (low is None or value >= low) and (high is None or value <= high)
        assert (pattern.fullmatch(text) is not None) is inside, text


def test_free_numbers() -> None:
    pattern = as_pattern(number_expression(None, None, False, False, ()))
    for text, allowed in [
        ("0", True),
        ("-12.50", True),
        ("1e9", True),
        ("6.02E+23", True),
        (".5", False),
        ("1.", False),
        ("01", False),
    ]:
        assert (pattern.fullmatch(text) is not None) is allowed, text


def test_multiples_between_bounds_are_listed() -> None:
    assert multiple_expression(7, -8, 15, GrammarText(), ()) == '("-7" | "0" | "7" | "14")'


def test_multiples_without_bounds_follow_the_remainder() -> None:
    grammar = GrammarText()
    root = multiple_expression(3, 0, None, grammar, ())
    assert "-" not in root
    assert grammar.text(root).count("::=") == 4


@pytest.mark.parametrize(("step", "low", "high"), [(129, None, None), (3, 1, None), (3, None, 9), (2, 0, 10**7)])
def test_other_multiples_are_refused(step: int, low: int | None, high: int | None) -> None:
    with pytest.raises(GrammarRefused, match="multipleOf"):
        multiple_expression(step, low, high, GrammarText(), ())
