"""Which tokens of a choice are reasoning, its markers included."""

from protocol.sampling import ReasoningSpan
from runtime.reasoning_markers import ReasoningFollower, TokenBytes


class ReasoningTracker:
    """`push` returns True for a token of the reasoning, its opening and closing markers included."""

    def __init__(self, span: ReasoningSpan, token_bytes: TokenBytes | None = None) -> None:
        self._follower = ReasoningFollower(span, token_bytes)

    @property
    def inside(self) -> bool:
        return self._follower.inside

    def push(self, token_id: int) -> bool:
        was_inside = self.inside
        self._follower.feed(token_id)
        return was_inside or self.inside
