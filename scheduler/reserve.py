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


SLOWDOWN = 1.5
"""How much longer than without them a step with prompts may take, unless `--max-itl-ms` says a time."""

ALIKE = 2
"""Numbers of streams within this factor of each other take about the same time."""

MOST_HELD_BACK = 2
"""Steps in a row without prompts. An even number: where a suspect and everybody else take turns, no two steps are alike,
and both must get theirs."""


class ChunkLimit:
    """Prompt tokens per step while streams are running: as many as fit into `--max-itl-ms` or, without the flag, into one
    and a half times what the streams alone take. What streams and prompt tokens take is what steps were seen to take."""

    def __init__(self, largest: int, max_itl_ms: float | None, page_size: int) -> None:
        self._largest = largest
        self._limit_us = None if max_itl_ms is None else max_itl_ms * 1000
        self._smallest = min(page_size, largest)
        self._token_us: float | None = None
        self._streams_us = 0.0
        self._streams = 0
        self._held_back = 0

    def tokens(self, streams: int) -> int:
        """Beside so many streams; 0 where a step without prompts has yet to show what they take."""
        if not streams or self._token_us is None:
            return self._largest
        if not self._are_alike(streams) and self._held_back < MOST_HELD_BACK:
            self._held_back += 1
            return 0
        self._held_back = 0
        limit_us = SLOWDOWN * self._streams_us if self._limit_us is None else self._limit_us
        return min(self._largest, max(self._smallest, int((limit_us - self._streams_us) / self._token_us)))

    def observe(self, prompt_tokens: int, streams: int, step_us: int) -> None:
        """What a step took; 0 is an executor without a clock."""
        if not step_us:
            return
        if not prompt_tokens:
            self._streams_us = (self._streams_us + step_us) / 2 if self._are_alike(streams) else step_us
            self._streams = streams
        elif prompt_tokens >= self._smallest and (not streams or self._streams):
            token_us = max(1.0, step_us - (self._streams_us if streams else 0.0)) / prompt_tokens
            self._token_us = token_us if self._token_us is None else (self._token_us + token_us) / 2

    def _are_alike(self, streams: int) -> bool:
        """Whether so many streams take about what is known of the last number of them."""
        return self._streams <= ALIKE * streams <= ALIKE**2 * self._streams
