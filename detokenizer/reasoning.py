"""Whether a choice is inside its reasoning, told from its ids."""

from collections import deque

from protocol.sampling import ReasoningSpan


class ReasoningTracker:
    """`push` returns True for a token of the reasoning, its opening and closing markers included."""

    def __init__(self, span: ReasoningSpan) -> None:
        self.inside = span.prompt_opened
        self._open = list(span.open_ids)
        self._close = list(span.close_ids)
        self._recent: deque[int] = deque(maxlen=max(len(self._open), len(self._close), 1))

    def push(self, token_id: int) -> bool:
        was_inside = self.inside
        self._recent.append(token_id)
        marker = self._close if was_inside else self._open
        if marker and list(self._recent)[-len(marker) :] == marker:
            self.inside = not was_inside
            self._recent.clear()
        return was_inside or self.inside
