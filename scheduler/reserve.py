"""Two estimates that follow what happens: how far running requests will grow, and how long a prompt chunk may be."""

from collections.abc import Iterable

from scheduler.sequence import Sequence


class GrowthReserve:
    """How many pages admission keeps free for requests that run already.

    Reserving every request's whole `max_tokens` would leave most of the pool idle, reserving nothing would retract all
    the time. So a share of it is reserved: smaller with each step that goes well, larger after each retraction.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self.ratio = 0.5
        self._smallest = 0.05
        self._decay = 0.998
        self._longest = 4096

    def step_went_well(self) -> None:
        self.ratio = max(self._smallest, self.ratio * self._decay)

    def retracted(self) -> None:
        self.ratio = min(1.0, self.ratio + 0.15)

    def growth(self, sequence: Sequence) -> int:
        """Pages that the choice will want beyond those of its ids so far. One that was retracted before gets all that
        it may need: it must not come back only to be retracted again."""
        remaining = sequence.end_length - len(sequence.tokens)
        if not sequence.retractions:
            remaining = int(min(remaining, self._longest) * self.ratio)
        return -(-max(0, remaining) // self._page_size)

    def outstanding(self, running: Iterable[Sequence]) -> int:
        """Pages that running choices have yet to take: the rest of their prompts, and their growth."""
        total = 0
        for sequence in running:
            total += max(0, -(-len(sequence.tokens) // self._page_size) - len(sequence.pages))
            total += self.growth(sequence)
        return total


class ChunkLimit:
    """Prompt tokens per step while streams are running, held to `--max-itl-ms` by what steps were seen to take."""

    def __init__(self, largest: int, max_itl_ms: float | None, page_size: int) -> None:
        self._largest = largest
        self._limit_us = None if max_itl_ms is None else max_itl_ms * 1000
        self._smallest = min(page_size, largest)
        self._current = largest

    def tokens(self, streams_run: bool) -> int:
        return self._current if streams_run else self._largest

    def observe(self, prompt_tokens: int, decode_rows: int, step_us: int) -> None:
        """Multiplicative decrease, slow increase: one slow step costs a stream less than many slow ones."""
        if self._limit_us is None or not prompt_tokens or not decode_rows:
            return
        if step_us > self._limit_us:
            self._current = max(self._smallest, int(min(self._current, prompt_tokens) * 0.7))
        elif prompt_tokens >= self._current:
            self._current = min(self._largest, int(self._current * 1.1) + 1)
