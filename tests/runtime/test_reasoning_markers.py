"""Where reasoning is said to end, whatever tokens the marker comes in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.sampling import ReasoningSpan
from runtime.reasoning_markers import ReasoningFollower

TEXTS = ("a", "<", "</", "think", ">", ">\n\n", ".</", "</think>", "<think>", "b>", "")
SPAN = ReasoningSpan((8,), (7,), prompt_opened=True, open_texts=("<think>",), close_texts=("</think>",))


def token_bytes(token: int) -> bytes:
    return TEXTS[token].encode()


def ids(*texts: str) -> list[int]:
    return [TEXTS.index(text) for text in texts]


@pytest.mark.parametrize(
    ("tokens", "marker_tokens"),
    [
        (ids("a", "</think>"), 1),
        (ids("a", "</", "think", ">"), 3),
        (ids("a", ".</", "think", ">\n\n"), 3),
        (ids("</", "think", "</", "think", ">"), 3),
        (ids("<", "</", "think", "", ">"), 4),
    ],
)
def test_the_end_is_found_in_the_text(tokens: list[int], marker_tokens: int) -> None:
    follower = ReasoningFollower(SPAN, token_bytes)
    assert [follower.feed(token) for token in tokens] == [*[0] * (len(tokens) - 1), marker_tokens]
    assert not follower.inside


@given(st.lists(st.integers(0, len(TEXTS) - 1), max_size=30))
def test_it_agrees_with_the_text_as_a_whole(tokens: list[int]) -> None:
    """Up to the first end; what follows that in the same token is nobody's beginning."""
    follower = ReasoningFollower(SPAN, token_bytes, reopens=False)
    text = b""
    for token in tokens:
        follower.feed(token)
        text += token_bytes(token)
        assert follower.inside == (b"</think>" not in text)


def test_reasoning_may_begin_again_unless_it_must_not() -> None:
    again = ReasoningFollower(SPAN, token_bytes)
    once = ReasoningFollower(SPAN, token_bytes, reopens=False)
    for token in ids("</think>", "a", "<think>"):
        again.feed(token)
        once.feed(token)
    assert (again.inside, once.inside) == (True, False)


def test_ids_decide_where_texts_are_not_known() -> None:
    span = ReasoningSpan((50,), (1, 256), prompt_opened=True)
    follower = ReasoningFollower(span)
    assert [follower.feed(token) for token in (1, 0, 256, 1, 256)] == [0, 0, 0, 0, 2]
    assert not follower.inside


def test_what_is_missing_to_the_end() -> None:
    follower = ReasoningFollower(SPAN, token_bytes)
    for token in ids("a", "</", "think"):
        follower.feed(token)
    assert follower.missing_ends() == [b"</think>", b">"]


def test_other_closing_markers_and_tool_calls_end_it_too() -> None:
    span = ReasoningSpan(
        (8,), (7,), True, open_texts=("<think>",), close_texts=("</think>", "b>"), tool_texts=("<think>",)
    )
    for ending in ("b>", "<think>"):
        follower = ReasoningFollower(span, token_bytes)
        assert follower.feed(TEXTS.index(ending)) == 1
        assert not follower.inside
    assert ReasoningFollower(span, token_bytes).missing_tools() == [b"<think>"]
