"""What the scheduler asks of a grammar backend. Everything here is called from the scheduler's loop and never blocks,
save `GrammarBackend.collect_masks`, which waits for a bounded time."""

from collections.abc import Sequence
from typing import Protocol

from protocol.errors import ErrorInfo
from protocol.sampling import GrammarSpec


class GrammarState(Protocol):
    """Where one choice stands in its grammar. Survives retraction; after a crash it is rebuilt by `accept` of the output so far."""

    def accept(self, ids: Sequence[int]) -> bool:
        """Moves on over drawn or forced ids; False (and the state unchanged) if the grammar does not allow them."""

    @property
    def finished(self) -> bool:
        """True once an end id was accepted."""

    def forced_ids(self) -> tuple[int, ...]:
        """Ids that must come next whatever is drawn (jump-forward), () if there is a choice or a token border is unsafe."""


class GrammarTemplate(Protocol):
    """A compiled grammar, shared by all requests with the same spec."""

    def new_state(self, end_ids: tuple[int, ...]) -> GrammarState: ...


class GrammarBackend(Protocol):
    """Compiles, and fills masks in threads of its own while the forward pass runs."""

    def compile(self, spec: GrammarSpec) -> int:
        """Starts (or finds in the cache) a compilation and returns its ticket; the outcome comes from `poll`."""

    def cancel(self, ticket: int) -> None:
        """Nobody waits for this ticket any more."""

    def poll(self) -> list[tuple[int, GrammarTemplate | ErrorInfo]]:
        """Outcomes since the last call."""

    def request_masks(self, states: Sequence[GrammarState]) -> None:
        """Starts to fill the masks of the next draw of these states, in threads."""

    def collect_masks(self, states: Sequence[GrammarState], timeout_s: float) -> tuple[bytes, list[int]]:
        """(words [len(states), ceil(vocabulary / 32)] as int32 bytes, indices of states whose mask is not ready).

        A row that is not ready within `timeout_s` is all zero; its filling goes on and the next call finds it.
        """

    def failure(self, state: GrammarState) -> ErrorInfo | None:
        """Why a state can't go on (its masks are over their time budget), or None."""

    def statistics(self) -> dict[str, float]:
        """Figures for metrics: compilations, cache hits and bytes, mask microseconds."""

    def close(self) -> None: ...
