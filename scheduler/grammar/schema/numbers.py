"""Numbers between bounds as expressions over digits."""

from collections.abc import Iterator
from fractions import Fraction

from scheduler.grammar.schema.ebnf import EMPTY, GrammarText, choice
from scheduler.grammar.schema.errors import Path, refused, unsatisfiable

MAX_DIGITS = 18
"""Whole numbers have at most so many digits: they fit into 64 bits, and a number ends."""

MAX_MULTIPLE = 128
_MAX_MULTIPLES_LISTED = 2000
_DECIMALS = 4
_LIMIT = 10**MAX_DIGITS - 1

Digits = tuple[str, ...]  # one class per digit

INTEGER = '"-"? ("0" | [1-9] [0-9]{0,17})'
NUMBER = INTEGER + ' ("." [0-9]{1,17})? ([eE] [+-]? [0-9] [0-9]?)?'


def integer_expression(low: int | None, high: int | None, path: Path) -> str:
    """Whole numbers from `low` to `high`, both included (None: no bound but MAX_DIGITS)."""
    if low is None and high is None:
        return f"({INTEGER})"
    options = [_joined(sign, digits, 0) for sign, digits in _signed(*_bounded(low, high, path), width=1)]
    return choice(options)


def number_expression(low: Fraction | None, high: Fraction | None, low_open: bool, high_open: bool, path: Path) -> str:
    """Numbers between the bounds, written with at most some decimals more than the bounds have."""
    if low is None and high is None:
        return f"({NUMBER})"
    options: list[str] = []
    decimals = max(_decimals(low), _decimals(high))
    for shown in range(decimals + _DECIMALS + 1):
        scale = 10**shown
        least = None if low is None else _ceiling(low * scale, low_open)
        most = None if high is None else -_ceiling(-high * scale, high_open)
        if least is not None and most is not None and least > most:
            continue
        bounded = _bounded(least, most, path)
        options += [_joined(sign, digits, shown) for sign, digits in _signed(*bounded, width=shown + 1)]
    if not options:
        raise unsatisfiable(path, "no number lies between the bounds")
    return choice(options)


def multiple_expression(step: int, low: int | None, high: int | None, grammar: GrammarText, path: Path) -> str:
    """Multiples of `step`: listed between two bounds, else by their remainder, digit by digit."""
    if low is not None and high is not None:
        first, last = -(-low // step), high // step
        if last < first:
            raise unsatisfiable(path, f"no multiple of {step} lies between the bounds")
        if last - first < _MAX_MULTIPLES_LISTED:
            return choice([f'"{step * k}"' for k in range(first, last + 1)])
    if step > MAX_MULTIPLE or (low or 0) != 0 or high is not None:
        raise refused("multipleOf", path, "is supported up to 128 without other bounds, or with at most 2000 multiples")
    states = [grammar.declare() for _ in range(step)]
    for remainder, state in enumerate(states):
        following = [f'"{digit}" {states[(10 * remainder + digit) % step]}' for digit in range(10)]
        grammar.define(state, choice([*following, EMPTY] if remainder == 0 else following))
    starts = [f'"{digit}" {states[digit % step]}' for digit in range(1, 10)]
    sign = '"-"? ' if low is None else ""
    first_digit = choice(['"0"', *starts])
    return f"({sign}{first_digit})"


def _bounded(low: int | None, high: int | None, path: Path) -> tuple[int, int]:
    least = -_LIMIT if low is None else low
    most = _LIMIT if high is None else high
    if least > most:
        raise unsatisfiable(path, "no number lies between the bounds")
    if len(str(abs(least))) > 2 * MAX_DIGITS or len(str(abs(most))) > 2 * MAX_DIGITS:
        raise refused("minimum", path, f"bounds of more than {2 * MAX_DIGITS} digits are not supported")
    return least, most


def _decimals(bound: Fraction | None) -> int:
    """Digits after the point that the bound needs, as far as they matter."""
    if bound is None:
        return 0
    for count in range(13):
        if (bound * 10**count).denominator == 1:
            return count
    return 12


def _ceiling(value: Fraction, is_open: bool) -> int:
    """The smallest whole number not below the value (above it, if the bound is open)."""
    whole = -(-value.numerator // value.denominator)
    return whole + 1 if is_open and whole == value else whole


def _joined(sign: str, digits: Digits, decimals: int) -> str:
    """Runs of free digits are folded; the point stands before the last `decimals` digits."""
    whole = len(digits) - decimals
    point = ['"."'] if decimals else []
    parts = ([f'"{sign}"'] if sign else []) + _folded(digits[:whole]) + point + _folded(digits[whole:])
    return " ".join(parts)


def _folded(digits: Digits) -> list[str]:
    parts: list[str] = []
    free = 0
    for digit in (*digits, ""):
        if digit == "[0-9]":
            free += 1
            continue
        if free:
            parts.append("[0-9]" if free == 1 else f"[0-9]{{{free}}}")
            free = 0
        if digit:
            parts.append(digit)
    return parts


def _signed(low: int, high: int, width: int) -> Iterator[tuple[str, Digits]]:
    if low < 0:
        for digits in _unsigned(max(1, -high), -low, width):
            yield "-", digits
    if high >= 0:
        for digits in _unsigned(max(0, low), high, width):
            yield "", digits


def _unsigned(low: int, high: int, width: int) -> Iterator[Digits]:
    """Numbers of at least `width` digits; only those of exactly `width` may begin with 0."""
    for length in range(width, len(str(high)) + 1 if high >= 10**width else width + 1):
        least = max(low, 0 if length == width and width > 1 else (10 ** (length - 1) if length > 1 else 0))
        most = min(high, 10**length - 1)
        if least <= most:
            yield from _between(str(least).zfill(length), str(most).zfill(length))


def _between(low: str, high: str) -> Iterator[Digits]:
    """Strings of digits from `low` to `high`, of one length."""
    if not low:
        yield ()
        return
    free = ("[0-9]",) * (len(low) - 1)
    if low.strip("0") == "" and high.strip("9") == "":
        yield ("[0-9]", *free)
        return
    first, last = int(low[0]), int(high[0])
    if first == last:
        for rest in _between(low[1:], high[1:]):
            yield (_digits(first, last), *rest)
        return
    if low[1:].strip("0"):
        for rest in _between(low[1:], "9" * len(free)):
            yield (_digits(first, first), *rest)
        first += 1
    ends_free = not high[1:].strip("9")
    top = last if ends_free else last - 1
    if first <= top:
        yield (_digits(first, top), *free)
    if not ends_free:
        for rest in _between("0" * len(free), high[1:]):
            yield (_digits(last, last), *rest)


def _digits(first: int, last: int) -> str:
    return f'"{first}"' if first == last else f"[{first}-{last}]"
