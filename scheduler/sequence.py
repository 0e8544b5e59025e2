"""A request and its choices as the scheduler holds them, and the states that a choice goes through."""

import enum
import sys
from array import array

from protocol.ids import pack_ids, unpack_array
from protocol.outputs import IdLogprobs
from protocol.requests import Adjustment, EngineRequest
from scheduler.grammar.interface import GrammarState
from scheduler.ngrams import DraftState, PredictedText
from scheduler.radix_cache import Node
from scheduler.reasoning import MarkerEnds, ReasoningTracker

Rank = tuple[bool, int, float, int, int]
"""Who comes first: probes, then priority, arrival, the order in which requests came in, the choice's index."""


NEVER = sys.maxsize


class State(enum.Enum):
    COMPILING = "compiling"
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.COMPILING: frozenset((State.WAITING, State.FINISHED)),
    State.WAITING: frozenset((State.PREFILLING, State.FINISHED)),
    State.PREFILLING: frozenset((State.DECODING, State.WAITING, State.FINISHED)),
    State.DECODING: frozenset((State.WAITING, State.FINISHED)),
    State.FINISHED: frozenset(),
}
"""DECODING -> WAITING and PREFILLING -> WAITING are retractions: pages ran out, the output so far stays."""


class Request:
    """What the choices of one request share."""

    __slots__ = (
        "attempt",
        "cached_tokens",
        "end_ids",
        "id",
        "marker_ends",
        "message",
        "predicted",
        "prompt_logprobs",
        "resumed",
        "scored",
        "scorer",
        "sequences",
        "started",
        "submitted_s",
        "ticket",
        "unfinished",
    )

    def __init__(self, message: EngineRequest, rank: Rank, context_length: int, ends: MarkerEnds | None = None) -> None:
        self.message = message
        self.id = message.request_id
        self.attempt = message.attempt
        self.marker_ends = ends
        sampling = message.sampling
        # With a grammar the end is the grammar's to allow, so it must know every id that ends a choice.
        heeds_eos = not sampling.ignore_eos or sampling.grammar is not None
        eos = message.eos_token_ids if heeds_eos else ()
        self.end_ids = tuple(dict.fromkeys((*eos, *sampling.stop_token_ids)))
        self.resumed = bool(message.resume) or message.attempt > 0
        self.started = False
        self.submitted_s = 0.0
        self.ticket: int | None = None
        self.cached_tokens = 0
        self.predicted = PredictedText(unpack_array(message.prediction_ids)) if message.prediction_ids else None
        self.prompt_logprobs: list[IdLogprobs | None] | None = None
        progress = {choice.index: choice for choice in message.resume}
        self.sequences = [
            Sequence(self, index, rank, context_length, progress[index].ids if index in progress else b"")
            for index in range(message.n)
        ]
        self.unfinished = message.n
        for sequence in self.sequences:
            if sequence.index in progress and progress[sequence.index].finished:
                sequence.move(State.FINISHED)
                self.unfinished -= 1
        # Prompt logprobs come with a choice's first output; one choice computes them, all that have none yet get them.
        self.scored: list[IdLogprobs | None] = [None]
        self.scorer: Sequence | None = None
        if sampling.prompt_logprobs is not None:
            fresh = [s for s in self.sequences if s.state is not State.FINISHED and not s.output_tokens]
            self.scorer = fresh[0] if fresh else None
            if self.sequences[0].prompt_length == 1:
                self.prompt_logprobs = self.scored


class Sequence:
    """One choice: its ids, how far they are computed, and what it holds (a row slot, pages, a place in the tree).

    `planned` tokens are computed or on their way, `computed` ones are known to be. `drawing` counts draws in flight,
    `in_flight` steps; `void_draws` are draws in flight that were given an empty mask, so that they draw nothing.
    The first `tree_pages` of `pages` belong to the tree, where the lock is at `tip`; the rest are the choice's own.
    The next of them is whole when `publish_at` tokens are computed. `masked_at_times` is False for most: no grammar, no
    thinking budget. `may_speculate`: several draws of one step are those of single steps.
    """

    __slots__ = (
        "adjustments",
        "computed",
        "draft_state",
        "drawing",
        "end_length",
        "forced",
        "grammar",
        "held_mask",
        "in_flight",
        "index",
        "last_step",
        "lent_priority",
        "mandatory",
        "mask_asked",
        "masked_at_times",
        "may_speculate",
        "owes_prompt_logprobs",
        "pages",
        "planned",
        "producer",
        "prompt_length",
        "publish_at",
        "rank",
        "reasoning",
        "recalled",
        "request",
        "retractions",
        "sent_pages",
        "shared_pages",
        "slot",
        "slow_mask",
        "state",
        "tip",
        "tokens",
        "tree_pages",
        "unsent",
        "void_draws",
    )

    def __init__(self, request: Request, index: int, rank: Rank, context_length: int, output: bytes) -> None:
        message = request.message
        self.request = request
        self.index = index
        self.rank: Rank = (*rank[:-1], index)
        self.lent_priority = -rank[1]
        self.state = State.COMPILING
        self.tokens = unpack_array(message.prompt_ids)
        self.prompt_length = len(self.tokens)
        self.tokens.extend(unpack_array(output))
        wanted = message.sampling.max_tokens
        room = context_length - self.prompt_length
        self.end_length = self.prompt_length + (room if wanted is None else min(wanted, room))
        span = message.reasoning_span
        free = message.sampling.grammar is None
        self.reasoning = ReasoningTracker(span, request.marker_ends, reopens=free) if span is not None else None
        self.grammar: GrammarState | None = None
        self.masked_at_times = not free or (span is not None and message.sampling.thinking_budget is not None)
        self.may_speculate = not self.masked_at_times and not message.sampling.draws_depend_on_each_other
        self.draft_state: DraftState | None = None
        self.mandatory: list[int] = []
        self.mask_asked = False
        self.slow_mask = False
        self.held_mask: bytes | None = None
        self.unsent: list[int] = []
        self.adjustments: tuple[Adjustment, ...] = ()
        self.retractions = 0
        self.producer: Sequence | None = None
        self.shared_pages = 0
        self.in_flight = 0
        self.drawing = 0
        self.void_draws = 0
        self.owes_prompt_logprobs = message.sampling.prompt_logprobs is not None and not output
        self.recalled = False
        self.forget_row()

    # pages, slot and everything that goes with them
    def forget_row(self) -> None:
        """The state of a choice that holds nothing."""
        self.slot = -1
        self.pages = array("i")
        self.sent_pages = 0
        self.tree_pages = 0
        self.publish_at = NEVER
        self.tip: Node | None = None
        self.computed = 0
        self.planned = 0
        self.last_step = -1
        self.forced: list[int] = []

    def follow_output(self) -> bool:
        """Takes grammar and reasoning over the output that the choice came with; False if the grammar does not allow it."""
        for token in self.tokens[self.prompt_length :]:
            constrained = self.in_grammar
            if self.reasoning is not None:
                self.reasoning.feed(token)
            if constrained and self.grammar is not None and not self.grammar.accept((token,)):
                return False
        return True

    def move(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_length

    def output_ids(self) -> bytes:
        return pack_ids(self.tokens[self.prompt_length :])

    @property
    def scores_prompt(self) -> bool:
        """True while this is the choice whose prompt logprobs are wanted."""
        return self.request.scorer is self and self.request.prompt_logprobs is None

    @property
    def in_grammar(self) -> bool:
        """True if the next token is the grammar's."""
        return self.grammar is not None and not (self.reasoning is not None and self.reasoning.inside)

    @property
    def awaits_mask(self) -> bool:
        """True if the next draw may need a mask, as far as is known while earlier draws are still in flight."""
        if self.grammar is not None or self.mandatory:
            return True
        budget, reasoning = self.request.message.sampling.thinking_budget, self.reasoning
        if budget is None or reasoning is None or not self.drawing:
            return False
        return reasoning.tokens + self.drawing >= budget
