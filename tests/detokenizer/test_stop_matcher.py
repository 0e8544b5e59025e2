import time

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from detokenizer.stop_matcher import (
    REGEX_TAIL_CHARACTERS,
    RegexMatcher,
    StopMatch,
    StopMatcher,
    StopStrings,
    StopTimeout,
    StringMatcher,
    make_matcher,
)


def first_match(text: str, stops: list[str]) -> StopMatch | None:
    """The definition, straight."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return StopMatch(end - len(longest), end, longest)
    return None


def partial(text: str, stops: list[str]) -> int:
    return max((k for stop in stops for k in range(len(stop)) if text.endswith(stop[:k])), default=0)


def feed(matcher: StopMatcher, chunks: list[str]) -> StopMatch | None:
    for chunk in chunks:
        match = matcher.push(chunk)
        if match is not None:
            return match
    return None


letters = st.text("ab.", max_size=6)


@settings(max_examples=500, deadline=None)
@given(st.lists(letters, min_size=1, max_size=4), st.lists(letters, max_size=8))
def test_strings_are_found_where_they_are_first_complete(stops: list[str], chunks: list[str]) -> None:
    matcher = StringMatcher(StopStrings(stops))
    match = feed(matcher, chunks)
    assert match == first_match("".join(chunks), stops)
    if match is None:
        assert matcher.partial == partial("".join(chunks), stops)


def test_what_lies_before_a_reset_is_not_continued() -> None:
    matcher = StringMatcher(StopStrings(["STOP"]))
    matcher.push("ST")
    matcher.reset()
    assert matcher.partial == 0
    assert matcher.push("OP STOP") == StopMatch(5, 9, "STOP")


@pytest.mark.parametrize(
    ("pattern", "chunks", "start", "end"),
    [
        (r"\d{3}", ["ab1", "2", "3c"], 2, 5),
        (r"Q:|\n\n", ["a\n", "\nQ:"], 1, 3),
        (r"(?i)stop", ["xS", "to", "P"], 1, 5),
        (r"(?<=x)y", ["xx", "y"], 2, 3),
        (r"é+", ["aé"], 1, 2),
    ],
)
def test_regexes_are_found_across_chunks(pattern: str, chunks: list[str], start: int, end: int) -> None:
    assert feed(RegexMatcher(pattern), chunks) == StopMatch(start, end, pattern)


def test_a_regex_holds_back_what_may_begin_a_match() -> None:
    matcher = RegexMatcher(r"END\d")
    held = []
    for character in "a EN ENDx":
        assert matcher.push(character) is None
        held.append(matcher.partial)
    assert held == [0, 0, 1, 2, 0, 1, 2, 3, 0]


def test_the_start_of_the_text_is_no_other_place() -> None:
    matcher = RegexMatcher("^b")
    chunks = ["ab" * 500 for _ in range(20)]
    assert feed(matcher, chunks) is None


def test_a_match_of_nothing_does_not_count() -> None:
    assert feed(RegexMatcher("x*"), ["ab", "xx"]) == StopMatch(2, 4, "x*")


def test_a_regex_sees_a_bounded_tail() -> None:
    matcher = RegexMatcher("(?s)a.*b")
    matcher.push("a")
    for _ in range(REGEX_TAIL_CHARACTERS // 8 + 1):
        assert matcher.push("x" * 8) is None
        assert matcher.partial <= REGEX_TAIL_CHARACTERS
    assert matcher.push("b") is None


def test_a_regex_over_its_time_says_so() -> None:
    matcher = RegexMatcher(r"(a|aa)+(a|aa)+(a|aa)+(a|aa)+$b")
    began = time.thread_time()
    with pytest.raises(StopTimeout, match="took too long"):
        feed(matcher, ["a" * 2000 + "c"] * 50)
    assert time.thread_time() - began < 2.0


def test_an_invalid_regex_is_an_error() -> None:
    with pytest.raises(regex.error):
        make_matcher(None, ["("])


def test_several_matchers_stop_at_the_first_match() -> None:
    matcher = make_matcher(StopStrings(["END"]), [r"\d\d", "EN"])
    assert matcher is not None
    assert matcher.push("E") is None
    assert matcher.partial == 1
    assert matcher.push("ND 12") == StopMatch(0, 2, "EN")


def test_nothing_to_stop_at_is_no_matcher() -> None:
    assert make_matcher(None, []) is None
