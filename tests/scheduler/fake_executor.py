"""An executor that keeps ids where a model keeps keys and values."""

from collections import deque
from dataclasses import dataclass, field

from protocol.ids import pack_ids, unpack_ids
from protocol.outputs import IdLogprobs
from protocol.plan import (
    LAST_SAMPLED,
    NOTHING_DRAWN,
    BatchPlan,
    Capacity,
    GrammarMasks,
    RowFailure,
    RowStart,
    StepResult,
)
from tests.scheduler.fake_model import PAGE, VOCABULARY, next_token


@dataclass
class Slot:
    start: RowStart
    history: list[int]
    pages: list[int] = field(default_factory=list)
    last: int = LAST_SAMPLED


@dataclass
class Step:
    plan: BatchPlan
    masks: GrammarMasks | None = None
    histories: list[list[int]] = field(default_factory=list)
    reads: dict[int, set[int]] = field(default_factory=dict)
    result: StepResult | None = None


class FakeExecutor:
    """`late`: computes nothing before `collect` asks, as a device that lags behind; else at once."""

    def __init__(self, pages: int = 65, rows: int = 9, late: bool = False) -> None:
        self.capacity = Capacity(pages, PAGE, rows, VOCABULARY, pages * 100, 1000)
        self.late = late
        self.plans: list[BatchPlan] = []
        self.computed_tokens = 0
        self.failing: dict[int, str] = {}
        self._steps: deque[Step] = deque()
        self._slots: dict[int, Slot] = {}
        self._tables: dict[int, list[int]] = {}
        self._kv = [[(-1, -1)] * PAGE for _ in range(pages)]
        self.most_in_flight = 0

    def launch(self, plan: BatchPlan) -> None:
        self.plans.append(plan)
        step = Step(plan)
        self._check_pages(step)
        self._steps.append(step)
        self.most_in_flight = max(self.most_in_flight, len(self._steps))
        if not self.late:
            self._forward(self._steps[-1])

    def sample(self, masks: GrammarMasks | None) -> None:
        step = self._steps[-1]
        assert (masks is not None) == bool(step.plan.masked)
        step.masks = masks
        if not self.late:
            step.result = self._sample(step)

    def collect(self) -> StepResult:
        step = self._steps.popleft()
        if step.result is None:
            self._forward(step)
            step.result = self._sample(step)
        return step.result

    def statistics(self) -> dict[str, float]:
        return {"logit_bias_bytes": 0.0}

    def close(self) -> None:
        assert not self._steps

    def _check_pages(self, step: Step) -> None:
        """No step may write where an uncollected one still reads for another row."""
        plan = step.plan
        for delta in plan.page_deltas:
            self._tables.setdefault(delta.slot, [])[delta.first :] = unpack_ids(delta.pages)
        rows = zip(unpack_ids(plan.slots), unpack_ids(plan.new_tokens), unpack_ids(plan.context), strict=True)
        for slot, new_tokens, context in rows:
            table, end = self._tables[slot], context + new_tokens
            written = set(table[context // PAGE : (end - 1) // PAGE + 1])
            for earlier in self._steps:
                for other, pages in earlier.reads.items():
                    assert other == slot or not written & pages
            step.reads[slot] = set(table[: (end - 1) // PAGE + 1])

    def _forward(self, step: Step) -> None:
        plan = step.plan
        for released in plan.released:
            del self._slots[released]
        for start in plan.starts:
            assert start.slot not in self._slots
            history = unpack_ids(start.prompt_ids) + unpack_ids(start.output_ids)
            self._slots[start.slot] = Slot(start, history)
        for forced in plan.forced:
            self._slots[forced.slot].history += unpack_ids(forced.ids)
        for delta in plan.page_deltas:
            self._slots[delta.slot].pages[delta.first :] = unpack_ids(delta.pages)
        ids = deque(unpack_ids(plan.ids))
        rows = zip(unpack_ids(plan.slots), unpack_ids(plan.new_tokens), unpack_ids(plan.context), strict=True)
        for number, new_tokens, context in rows:
            slot = self._slots[number]
            assert 0 not in slot.pages
            for position in range(context, context + new_tokens):
                token = ids.popleft()
                token = slot.last if token == LAST_SAMPLED else token
                assert 0 <= token < VOCABULARY
                self._kv[slot.pages[position // PAGE]][position % PAGE] = (position, token)
            self.computed_tokens += new_tokens
            seen = [self._kv[slot.pages[p // PAGE]][p % PAGE] for p in range(context + new_tokens)]
            assert [position for position, _ in seen] == list(range(len(seen)))
            step.histories.append([token for _, token in seen])
        assert not ids

    def _sample(self, step: Step) -> StepResult:
        plan, words = step.plan, -(-VOCABULARY // 32)
        drawn: list[int] = []
        logprobs: list[IdLogprobs | None] = []
        failures = []
        for row, (number, draws) in enumerate(zip(unpack_ids(plan.slots), unpack_ids(plan.draws), strict=True)):
            if not draws:
                continue
            slot, fed = self._slots[number], step.histories[row]
            start, sampling = slot.start, slot.start.sampling
            known = len(fed) - draws + 1
            assert slot.history == fed[:known], "the row's history is not what its pages hold"
            mask = None
            if row in plan.masked:
                assert step.masks is not None
                at = plan.masked.index(row)
                mask = int.from_bytes(step.masks.words[at * words * 4 : (at + 1) * words * 4], "little")
            if start.seed in self.failing:
                failures.append(RowFailure(row, self.failing[start.seed]))
            for length in range(known, len(fed) + 1):
                token = NOTHING_DRAWN if start.seed in self.failing else draw(start, fed[:length], mask)
                if token != NOTHING_DRAWN and slot.history == fed[:length]:
                    slot.history.append(token)
                    slot.last = token
                drawn.append(token)
                logprobs.append(IdLogprobs(token, -0.5) if sampling.logprobs is not None else None)
        scored = []
        for row in plan.prompt_logprobs:
            prompt = unpack_ids(self._slots[unpack_ids(plan.slots)[row]].start.prompt_ids)
            first, count = unpack_ids(plan.context)[row], unpack_ids(plan.new_tokens)[row]
            ends = range(first + 1, min(first + count + 1, len(prompt)))
            scored.append([IdLogprobs(prompt[position], -float(position)) for position in ends])
        return StepResult(plan.step, pack_ids(drawn), logprobs, scored, failures, 100)


def draw(start: RowStart, history: list[int], mask: int | None) -> int:
    """What comes after these ids: one that the mask's bits allow, and no end before `min_tokens`."""
    allowed = None
    if mask is not None:
        allowed = [token for token in range(VOCABULARY) if mask >> token & 1]
    elif len(history) - len(unpack_ids(start.prompt_ids)) < start.sampling.min_tokens:
        allowed = [token for token in range(VOCABULARY) if token not in start.end_ids]
    return next_token(start.seed, history, allowed)
