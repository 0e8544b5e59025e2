"""A scheduler between fakes: messages in, answers out, time that moves when it is told."""

from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from protocol.ids import pack_ids, unpack_ids
from protocol.outputs import Admitted, Finish, Refused, SequenceOutput, StepOutput
from protocol.requests import AbortRequest, ChoiceProgress, EngineRequest
from protocol.sampling import SamplingParameters
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.server_args import ServerArgs
from scheduler.grammar.interface import GrammarBackend
from scheduler.plan_builder import StepRecord
from scheduler.scheduler import Scheduler, Surroundings
from tests.samples import config_of
from tests.scheduler.fake_executor import FakeExecutor
from tests.scheduler.fake_grammar import FakeGrammarBackend
from tests.scheduler.fake_model import EOS, PAGE, VOCABULARY


def make_config(lookahead: int = 0, draft_tokens: int = 0, /, **args: object) -> EngineConfig:
    """Small numbers, so that limits are met: 16 tokens in a step, 8 of them prompt."""
    model = ModelDescription("fake", "", "dummy", ("fake",), "Fake", {}, 200, VOCABULARY, (EOS,), None, "")
    return config_of(
        msgspec.convert(args, ServerArgs),
        model,
        page_size=PAGE,
        kv_tokens=None,
        max_running_requests=8,
        chunked_prefill_size=8,
        lookahead=lookahead,
        threads=1,
        draft_tokens=draft_tokens,
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
