"""An executor that keeps ids instead of keys and values, a grammar backend of fixed steps, and a scheduler between them."""

import json
import zlib
from array import array
from collections import deque
from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from protocol.errors import ErrorInfo
from protocol.ids import pack_ids, unpack_ids
from protocol.outputs import Admitted, Finish, IdLogprobs, Refused, SequenceOutput, StepOutput
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
from protocol.requests import AbortRequest, ChoiceProgress, EngineRequest
from protocol.sampling import GrammarSpec, ReasoningSpan, SamplingParameters
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.server_args import ServerArgs
from scheduler.grammar.interface import GrammarBackend, GrammarState, GrammarTemplate
from scheduler.plan_builder import StepRecord
from scheduler.reasoning import ReasoningTracker
from scheduler.scheduler import Scheduler, Surroundings

VOCABULARY = 64
EOS = 63
PAGE = 4


def next_token(seed: int, history: Items[int], allowed: Items[int] | None = None) -> int:
    """Depends on the seed and everything before it, so that any misplaced id changes all that follow."""
    start = zlib.crc32(array("i", history).tobytes(), seed) % VOCABULARY
    if allowed is None:
        return start
    choices = sorted(allowed)
    return choices[start % len(choices)] if choices else NOTHING_DRAWN


def expected_output(
    prompt: Items[int], seed: int, max_tokens: int, end_ids: tuple[int, ...] = (EOS,), min_tokens: int = 0
) -> list[int]:
    """What an undisturbed run answers."""
    ids = list(prompt)
    while len(ids) < len(prompt) + max_tokens:
        early = len(ids) - len(prompt) < min_tokens
        ids.append(
            next_token(seed, ids, [token for token in range(VOCABULARY) if token not in end_ids] if early else None)
        )
        if ids[-1] in end_ids:
            break
    return ids[len(prompt) :]


def expected_constrained(
    prompt: Items[int],
    seed: int,
    max_tokens: int,
    steps: list[list[int]] | None = None,
    span: ReasoningSpan | None = None,
    budget: int | None = None,
    endless: bool = False,
) -> list[int]:
    """What an undisturbed run answers under a grammar of fixed steps and a thinking budget; `endless`: ignore_eos."""
    ids, mandatory = list(prompt), list[int]()
    grammar = None if steps is None else StepGrammar(steps, (EOS,))
    tracker = None if span is None else ReasoningTracker(span, reopens=grammar is None)
    while len(ids) < len(prompt) + max_tokens:
        inside = tracker is not None and tracker.inside
        if tracker is not None and inside and budget is not None and tracker.tokens >= budget and not mandatory:
            mandatory = tracker.remaining_close()
        constrained = grammar is not None and not inside
        allowed = mandatory[:1] or None
        if grammar is not None and not mandatory:
            allowed = grammar.allowed() if constrained else [token for token in range(VOCABULARY) if token != EOS]
        ids.append(next_token(seed, ids, allowed))
        mandatory = mandatory[1:]
        if grammar is not None and constrained:
            assert grammar.accept(ids[-1:])
        if tracker is not None:
            tracker.feed(ids[-1])
        if ids[-1] == EOS and (grammar is not None or not endless):
            break
    return ids[len(prompt) :]


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
            slot, history = self._slots[number], step.histories[row]
            start, sampling = slot.start, slot.start.sampling
            assert slot.history == history, "the row's history is not what its pages hold"
            allowed = None
            output_tokens = len(history) - len(unpack_ids(start.prompt_ids))
            if row in plan.masked:
                assert step.masks is not None
                at = plan.masked.index(row)
                mask = int.from_bytes(step.masks.words[at * words * 4 : (at + 1) * words * 4], "little")
                allowed = [token for token in range(VOCABULARY) if mask >> token & 1]
            elif output_tokens < sampling.min_tokens:
                allowed = [token for token in range(VOCABULARY) if token not in start.end_ids]
            if start.seed in self.failing:
                failures.append(RowFailure(row, self.failing[start.seed]))
                token = NOTHING_DRAWN
            else:
                token = next_token(start.seed, history, allowed)
            if token != NOTHING_DRAWN:
                slot.history.append(token)
                slot.last = token
            drawn.append(token)
            logprobs.append(IdLogprobs(token, -0.5) if sampling.logprobs is not None else None)
        scored = []
        for row in plan.prompt_logprobs:
            prompt = unpack_ids(self._slots[unpack_ids(plan.slots)[row]].start.prompt_ids)
            first, fed = unpack_ids(plan.context)[row], unpack_ids(plan.new_tokens)[row]
            ends = range(first + 1, min(first + fed + 1, len(prompt)))
            scored.append([IdLogprobs(prompt[position], -float(position)) for position in ends])
        return StepResult(plan.step, pack_ids(drawn), logprobs, scored, failures, 100)


class StepGrammar:
    """Allowed ids step by step, then only end ids. A step of one id is forced."""

    def __init__(self, steps: list[list[int]], end_ids: tuple[int, ...]) -> None:
        self.steps, self.end_ids, self.at = steps, end_ids, 0
        self.finished = False

    def allowed(self) -> list[int]:
        if self.finished:
            return []
        return self.steps[self.at] if self.at < len(self.steps) else list(self.end_ids)

    def accept(self, ids: Items[int]) -> bool:
        at = self.at
        for token in ids:
            if token not in self.allowed():
                self.at = at
                return False
            self.finished = self.at == len(self.steps)
            self.at += not self.finished
        return True

    def forced_ids(self) -> tuple[int, ...]:
        forced = []
        for step in self.steps[self.at :]:
            if len(step) > 1:
                break
            forced += step
        return tuple(forced)


class StepTemplate:
    def __init__(self, steps: list[list[int]]) -> None:
        self._steps = steps

    def new_state(self, end_ids: tuple[int, ...]) -> GrammarState:
        return StepGrammar(self._steps, end_ids)


class FakeGrammarBackend:
    """A spec's text is a JSON list of steps, or "bad". `slow` masks are late for so many looks; `stuck` ones for ever."""

    def __init__(self, slow: int = 0) -> None:
        self.slow = slow
        self.error: ErrorInfo | None = None
        self.compiled: list[str] = []
        self.cancelled: list[int] = []
        self._outcomes: list[tuple[int, GrammarTemplate | ErrorInfo]] = []
        self._asked: dict[int, int] = {}
        self.hold = False

    def compile(self, spec: GrammarSpec) -> int:
        self.compiled.append(spec.text)
        ticket = len(self.compiled)
        bad = ErrorInfo("no such keyword", param="response_format")
        self._outcomes.append((ticket, bad if spec.text == "bad" else StepTemplate(json.loads(spec.text))))
        return ticket

    def cancel(self, ticket: int) -> None:
        self.cancelled.append(ticket)

    def poll(self) -> list[tuple[int, GrammarTemplate | ErrorInfo]]:
        if self.hold:
            return []
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def request_masks(self, states: Items[GrammarState]) -> None:
        for state in states:
            assert isinstance(state, StepGrammar)
            self._asked[id(state)] = self.slow

    def collect_masks(self, states: Items[GrammarState], timeout_s: float) -> tuple[bytes, list[int]]:
        words, late = b"", []
        for position, state in enumerate(states):
            assert isinstance(state, StepGrammar)
            if self._asked[id(state)] > 0:
                self._asked[id(state)] -= 1
                late.append(position)
                mask = 0
            else:
                mask = sum(1 << token for token in state.allowed())
            words += mask.to_bytes(-(-VOCABULARY // 32) * 4, "little")
        return words, late

    def failure(self, state: GrammarState) -> ErrorInfo | None:
        return self.error

    def statistics(self) -> dict[str, float]:
        return {"compilations": float(len(self.compiled))}

    def close(self) -> None:
        pass


def make_config(lookahead: int = 0, **args: object) -> EngineConfig:
    """Small numbers, so that limits are met: 16 tokens in a step, 8 of them prompt."""
    model = ModelDescription("fake", "", "dummy", ("fake",), "Fake", {}, 200, VOCABULARY, (EOS,), None, "")
    return EngineConfig(
        args=msgspec.convert(args, ServerArgs),
        model=model,
        run_dir="",
        device="cpu",
        dtype="float32",
        quantization="none",
        attention_backend="torch",
        model_impl="native",
        page_size=PAGE,
        kv_tokens=None,
        max_running_requests=8,
        max_batch_tokens=16,
        chunked_prefill_size=8,
        lookahead=lookahead,
        threads=1,
        tool_call_parser=None,
        reasoning_parser=None,
        version="0",
    )


@dataclass
class Answer:
    """What reached the detokenizer of one choice."""

    ids: list[int] = field(default_factory=list)
    outputs: list[SequenceOutput] = field(default_factory=list)
    finish: Finish | None = None


def check_rows(record: StepRecord) -> None:
    """No row may write into a page of the tree, even if it would write the same again."""
    for sequence, end in zip(record.rows, record.ends, strict=True):
        assert (end - 1) // PAGE >= sequence.tree_pages


class Bench:
    """A scheduler with a fake executor, its messages collected, and time that moves only when told."""

    def __init__(self, config: EngineConfig | None = None, executor: FakeExecutor | None = None, slow_masks: int = 0):
        self.config = config or make_config()
        self.executor = executor or FakeExecutor(late=self.config.lookahead > 0)
        self.grammar = FakeGrammarBackend(slow_masks)
        self.grammar_start_error: Exception | None = None
        self.now = 1000.0
        self.sent: list[tuple[int, object]] = []
        self.answers: dict[tuple[str, int, int], Answer] = {}
        self.admitted: dict[str, Admitted] = {}
        self.refused: dict[str, Refused] = {}
        self.scheduler = Scheduler(self.config, Surroundings(self.executor, self._receive, self._backend, check_rows))

    def submit(
        self,
        request_id: str,
        prompt: Items[int],
        max_tokens: int = 8,
        *,
        seed: int = 7,
        output: Items[int] | None = None,
        sampling: SamplingParameters | None = None,
        **fields: object,
    ) -> None:
        parameters = sampling or SamplingParameters()
        progress = () if output is None else (ChoiceProgress(0, pack_ids(output)),)
        message = EngineRequest(
            request_id,
            pack_ids(prompt),
            msgspec.structs.replace(parameters, max_tokens=max_tokens, seed=seed),
            eos_token_ids=(EOS,),
            arrival_s=self.now,
        )
        if progress:
            fields.setdefault("resume", progress)
            fields.setdefault("attempt", 1)
        self.scheduler.submit(msgspec.structs.replace(message, **fields), self.now)

    def abort(self, request_id: str) -> None:
        self.scheduler.abort(AbortRequest(request_id), self.now)

    def turn(self) -> bool:
        worked = self.scheduler.turn(self.now)
        self.now += 0.01
        return worked

    def run(self, limit: int = 2000) -> None:
        """Until nothing is left to do; fails if that takes too long or the books are wrong afterwards."""
        for _ in range(limit):
            if not self.turn() and not self.scheduler.requests:
                break
        else:
            raise AssertionError("the scheduler does not come to an end")
        self.check_idle()

    def check_idle(self) -> None:
        memory = self.scheduler.memory
        assert self.scheduler.check_books() == []
        assert not self.scheduler.planner.running and not len(self.scheduler.queue)
        assert memory.pool.free + memory.cache.pages == memory.pool.usable
        assert memory.cache.evictable == memory.cache.pages

    def answer(self, request_id: str, index: int = 0, attempt: int = 0) -> Answer:
        return self.answers.setdefault((request_id, attempt, index), Answer())

    def _backend(self) -> "Future[GrammarBackend]":
        future: Future[GrammarBackend] = Future()
        if self.grammar_start_error is not None:
            future.set_exception(self.grammar_start_error)
        else:
            future.set_result(self.grammar)
        return future

    def _receive(self, detokenizer: int, message: msgspec.Struct) -> bool:
        self.sent.append((detokenizer, message))
        match message:
            case Admitted():
                self.admitted[message.request_id] = message
            case Refused():
                self.refused[message.request_id] = message
            case StepOutput():
                for output in message.outputs:
                    answer = self.answer(output.request_id, output.index, output.attempt)
                    assert answer.finish is None, "an output after the final one"
                    answer.ids += unpack_ids(output.ids)
                    answer.outputs.append(output)
                    answer.finish = output.finish
        return True
