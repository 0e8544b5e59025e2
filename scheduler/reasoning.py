"""Where a choice's reasoning begins and ends, followed token by token."""

from protocol.sampling import ReasoningSpan


class ReasoningTracker:
    """Knows whether the next token is reasoning. `tokens` counts what was reasoned, the markers not among it.

    With `reopens` False there is no reasoning but what begins the output: the answer of a grammar may well contain the
    opening marker as text.
    """

    __slots__ = ("_close", "_open", "_recent", "_reopens", "inside", "tokens")

    def __init__(self, span: ReasoningSpan, reopens: bool = True) -> None:
        self._open = list(span.open_ids)
        self._close = list(span.close_ids)
        self._recent: list[int] = []
        self._reopens = reopens
        self.inside = span.prompt_opened
        self.tokens = 0

    def feed(self, token: int) -> None:
        if not self.inside and not self._reopens:
            return
        marker = self._close if self.inside else self._open
        self.tokens += self.inside
        self._recent.append(token)
        del self._recent[: -max(len(self._open), len(self._close), 1)]
        if marker and self._recent[-len(marker) :] == marker:
            if self.inside:
                self.tokens -= len(marker)
            self.inside = not self.inside
            self._recent.clear()

    def remaining_close(self) -> list[int]:
        """What must still come to close the reasoning, given how it ends now."""
        for begun in range(len(self._close) - 1, 0, -1):
            if self._recent[-begun:] == self._close[:begun]:
                return self._close[begun:]
        return list(self._close)
