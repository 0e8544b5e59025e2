"""Where a choice's reasoning begins and ends, followed token by token, and how it can be closed."""

import itertools
from bisect import bisect_left

from protocol.sampling import ReasoningSpan
from runtime.reasoning_markers import ReasoningFollower
from runtime.vocabulary import Vocabulary


class MarkerEnds:
    """The vocabulary as far as markers are concerned; remembers the tokens that go beyond the end of one."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.token_bytes = vocabulary.token_bytes
        self._sorted = sorted((vocabulary.token_bytes(id), id) for id in range(vocabulary.size))
        self._beyond: dict[bytes, tuple[int, ...]] = {}

    def beyond(self, end: bytes) -> tuple[int, ...]:
        """Tokens that begin with these bytes and hold more."""
        return self.beginning(end, end + b"\0")

    def beginning(self, end: bytes, least: bytes = b"") -> tuple[int, ...]:
        """Tokens that begin with these bytes, from `least` on."""
        least = max(end, least)
        found = self._beyond.get(least)
        if found is None:
            first = bisect_left(self._sorted, (least,))
            following = itertools.takewhile(
                lambda entry: entry[0].startswith(end), itertools.islice(self._sorted, first, None)
            )
            found = self._beyond[least] = tuple(id for _, id in following)
        return found


class ReasoningTracker:
    """Knows whether the next token is reasoning. `tokens` counts what was reasoned, the markers not among it.

    With `reopens` False there is no reasoning but what begins the output: the answer of a grammar may well contain the
    opening marker as text. Without `ends` markers are told by their ids.
    """

    __slots__ = ("_close", "_ends", "_follower", "_recent", "tokens")

    def __init__(self, span: ReasoningSpan, ends: MarkerEnds | None = None, reopens: bool = True) -> None:
        self._follower = ReasoningFollower(span, ends.token_bytes if ends is not None else None, reopens)
        self._ends = ends if span.close_texts else None
        self._close = list(span.close_ids)
        self._recent: list[int] = []
        self.tokens = 0

    @property
    def inside(self) -> bool:
        return self._follower.inside

    def feed(self, token: int) -> None:
        was_inside = self.inside
        marker_tokens = self._follower.feed(token)
        if not was_inside:
            return
        self.tokens += 1
        if marker_tokens:
            self.tokens -= marker_tokens
            self._recent.clear()
        else:
            self._recent.append(token)
            del self._recent[: -max(len(self._close), 1)]

    def remaining_close(self) -> list[int]:
        """What must still come to close the reasoning, given how it ends now."""
        for begun in range(len(self._close) - 1, 0, -1):
            if self._recent[-begun:] == self._close[:begun]:
                return self._close[begun:]
        return list(self._close)

    def overshooting(self) -> tuple[int, ...]:
        """Tokens that would close the reasoning and begin what follows it at once, or begin a tool call without closing
        it: a grammar would not have seen that."""
        if self._ends is None or not self.inside:
            return ()
        found: dict[int, None] = {}
        for end in self._follower.missing_ends():
            found.update(dict.fromkeys(self._ends.beyond(end)))
        for end in self._follower.missing_tools():
            found.update(dict.fromkeys(self._ends.beginning(end)))
        return tuple(found)
