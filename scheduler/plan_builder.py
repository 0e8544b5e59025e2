"""One step being put together: the plan that executors get, and the record of what its rows mean to the scheduler."""

from array import array

from protocol.plan import LAST_SAMPLED, BatchPlan, ForcedTokens, PageDelta, RowStart
from scheduler.sequence import Sequence


class StepRecord:
    """Who the rows of a launched step are, and how far each will be when the step has run.

    `draws` may be any number per row: 0 for a prompt chunk or a prompt that is only scored, 1 usually, one more for each
    id of the row's draft. `ends` leave drafts out.
    """

    __slots__ = (
        "decode_rows",
        "drafts",
        "draws",
        "ends",
        "masked",
        "prompt_tokens",
        "rows",
        "scored",
        "step",
        "suspect",
    )

    def __init__(self, step: int, suspect: bool) -> None:
        self.step = step
        self.suspect = suspect
        self.rows: list[Sequence] = []
        self.ends: list[int] = []
        self.draws: list[int] = []
        self.drafts: dict[int, list[int]] = {}
        self.masked: list[Sequence] = []
        self.scored: list[Sequence] = []
        self.prompt_tokens = 0
        self.decode_rows = 0

    @property
    def drafted(self) -> int:
        """Ids of all drafts."""
        return sum(map(len, self.drafts.values()))

    def request_ids(self) -> list[str]:
        return list(dict.fromkeys(sequence.request.id for sequence in self.rows))


class PlanBuilder:
    """Appends rows; the arrays are the wire format already."""

    def __init__(self, step: int, suspect: bool) -> None:
        self.step = step
        self.record = StepRecord(step, suspect)
        self._slots = array("i")
        self._new_tokens = array("i")
        self._context = array("i")
        self._draws = array("i")
        self._ids = array("i")
        self._starts: list[RowStart] = []
        self._forced: list[ForcedTokens] = []
        self._page_deltas: list[PageDelta] = []
        self._masked: list[int] = []
        self._prompt_logprobs: list[int] = []

    def start(self, sequence: Sequence) -> None:
        """The choice takes its slot in this step."""
        message = sequence.request.message
        self._starts.append(
            RowStart(
                slot=sequence.slot,
                sampling=message.sampling,
                seed=message.sampling.seed + sequence.index,
                prompt_ids=message.prompt_ids,
                output_ids=sequence.output_ids(),
                end_ids=sequence.request.end_ids,
            )
        )

    def add(self, sequence: Sequence, count: int, draws: int, draft: list[int] | None = None) -> None:
        """A row that feeds the next `count` ids of the choice and draws `draws` times, and once more after each id of the
        draft, which follows its last; its pages are there."""
        record, context, tokens = self.record, sequence.planned, sequence.tokens
        end = context + count
        drafted = len(draft) if draft else 0
        draws += drafted
        self._slots.append(sequence.slot)
        self._new_tokens.append(count + drafted)
        self._context.append(context)
        self._draws.append(draws)
        if context >= len(tokens):
            self._ids.append(LAST_SAMPLED)
        elif count == 1:
            self._ids.append(tokens[context])
        else:
            self._ids.extend(tokens[context:end])
        if draft:
            self._ids.extend(draft)
            record.drafts[len(record.rows)] = draft
        if sequence.sent_pages < len(sequence.pages):
            first = sequence.sent_pages
            self._page_deltas.append(PageDelta(sequence.slot, first, sequence.pages[first:].tobytes()))
            sequence.sent_pages = len(sequence.pages)
        if sequence.forced:
            self._forced.append(ForcedTokens(sequence.slot, array("i", sequence.forced).tobytes()))
            sequence.forced.clear()
        if draws and sequence.masked_at_times and sequence.awaits_mask:
            self._masked.append(len(record.rows))
            record.masked.append(sequence)
        if context < sequence.prompt_length - 1 and sequence.scores_prompt:
            self._prompt_logprobs.append(len(record.rows))
            record.scored.append(sequence)
        record.rows.append(sequence)
        record.ends.append(end)
        record.draws.append(draws)
        sequence.planned = end
        sequence.drawing += draws
        sequence.in_flight += 1
        sequence.last_step = self.step

    def finish(self, released: list[int]) -> BatchPlan:
        return BatchPlan(
            step=self.step,
            slots=self._slots.tobytes(),
            new_tokens=self._new_tokens.tobytes(),
            context=self._context.tobytes(),
            draws=self._draws.tobytes(),
            ids=self._ids.tobytes(),
            starts=self._starts,
            released=released,
            forced=self._forced,
            page_deltas=self._page_deltas,
            masked=self._masked,
            prompt_logprobs=self._prompt_logprobs,
        )
