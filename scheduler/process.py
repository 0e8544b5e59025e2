"""The scheduler's process: drain, plan, launch, sample, collect, send; asleep when there is nothing to do."""

import functools
import gc
import os
import sys
import time

import msgspec

from protocol.control import (
    ControlReply,
    ControlRequest,
    Drain,
    Drained,
    PeerDown,
    PeerUp,
    Progress,
    Ready,
    Shutdown,
)
from protocol.errors import ErrorInfo
from protocol.outputs import StopFound
from protocol.plan import Executor, PlanEvidence
from protocol.requests import AbortRequest, EngineRequest, PeekCache
from runtime.channels import Links
from runtime.engine_config import EngineConfig, ProcessSpec
from runtime.process import joined, peer_of, run_process
from runtime.status_board import MAX_PLAN_BYTES, SlotWriter
from runtime.vocabulary import Vocabulary
from scheduler.control import ControlDesk
from scheduler.executor import GrammarStart, build_executor
from scheduler.plan_builder import StepRecord
from scheduler.reasoning import MarkerEnds
from scheduler.scheduler import Scheduler, Surroundings
from scheduler.warm_up import warm_up

MESSAGES_PER_TURN = 512
DRAIN_CHECK_S = 0.05
LONGEST_NAP_S = 1.0
BOOKS_CHECK_S = 10.0


class SchedulerLoop:
    """Everything the process does between its start and its end."""

    def __init__(
        self,
        config: EngineConfig,
        spec: ProcessSpec,
        links: Links,
        slot: SlotWriter,
        executor: Executor,
        grammar: GrammarStart,
    ) -> None:
        self._spec = spec
        self._links = links
        self._slot = slot
        self._executor = executor
        around = Surroundings(
            executor,
            functools.partial(links.outbox.send_or_keep, "detokenizer"),
            grammar.take,
            self._write_plan,
            # Only a server with a reasoning parser ever looks for markers.
            MarkerEnds(Vocabulary.load(config.model.tokenizer_file)) if config.reasoning_parser else None,
        )
        self.scheduler = Scheduler(config, around, spec.index)
        self._desk = ControlDesk(self.scheduler, spec.index, self._reply)
        self._drain_deadline_s: float | None = None
        self._running = True
        self._books_checked_s = 0.0
        self.resting = True

    def run(self) -> None:
        self._slot.update(state="ready")
        self._show_counters()
        self._links.report(Ready(peer_of(self._spec), os.getpid(), self._info()))
        while self._running:
            self.turn()
            if self.resting and self._running:
                self._rest(time.time())
        self.scheduler.constraints.close()
        self._executor.close()

    def turn(self) -> None:
        """Takes the messages that are there and makes one step; never waits for a message."""
        now = time.time()
        self._take_messages(now)
        self.resting = not self.scheduler.turn(now)
        self._desk.poll(now)
        self._show_counters()
        self._report_drained(now)

    def _rest(self, now: float) -> None:
        """Nothing to do until a message comes: a look at the books now and then, then sleep."""
        if not self.scheduler.requests and now - self._books_checked_s > BOOKS_CHECK_S:
            self._books_checked_s = now
            self.scheduler.check_books()
        nap_s = min(LONGEST_NAP_S, self.scheduler.wake_after_s(now))
        if self._desk.waiting or self._drain_deadline_s is not None:
            nap_s = min(nap_s, DRAIN_CHECK_S)
        self._links.wait(nap_s)

    def _take_messages(self, now: float) -> None:
        for control in self._links.control.drain():
            self._control(control, now)
        for message in self._links.inbox.drain(MESSAGES_PER_TURN):
            match message:
                case EngineRequest():
                    self.scheduler.submit(message, now)
                case AbortRequest():
                    self.scheduler.abort(message, now)
                case StopFound():
                    self.scheduler.stop_found(message)
                case ControlRequest():
                    self._desk.handle(message, now)
                case PeekCache():
                    self._desk.peek(message)

    def _control(self, message: PeerUp | PeerDown | Drain | Shutdown, now: float) -> None:
        match message:
            case Shutdown():
                self._running = False
            case Drain():
                self._drain_deadline_s = message.deadline_s
                self.scheduler.admission.draining = True
                self._slot.update(state="draining")
            case _:
                self._links.apply_peer(message)
                if isinstance(message, PeerDown) and message.peer.role == "http":
                    # Up to its death: the worker in its place may have sent something while this process was busy.
                    self.scheduler.drop_worker(message.peer.index, message.at_s or now)
                elif isinstance(message, PeerDown) and message.peer.role == "detokenizer":
                    self.scheduler.detokenizer_died(message.peer.index, message.at_s)

    def _report_drained(self, now: float) -> None:
        deadline_s = self._drain_deadline_s
        if deadline_s is None:
            return
        if now >= deadline_s and self.scheduler.requests:
            message = "the server shut down before the answer was finished"
            self.scheduler.end_all(ErrorInfo(message, 503, "service_unavailable_error", code="draining"))
        if not self.scheduler.requests:
            self._drain_deadline_s = None
            self._links.report(Drained(peer_of(self._spec)))

    def _write_plan(self, record: StepRecord) -> None:
        requests = record.request_ids()
        incarnation = self._spec.incarnation
        evidence = PlanEvidence(record.step, requests, record.prompt_tokens, record.decode_rows, incarnation)
        plan = msgspec.msgpack.encode(evidence)
        while len(plan) > MAX_PLAN_BYTES:  # ids differ in length
            requests = requests[: len(requests) * MAX_PLAN_BYTES // len(plan) - 1]
            plan = msgspec.msgpack.encode(msgspec.structs.replace(evidence, requests=requests))
        self._slot.write_plan(plan)

    def _reply(self, reply: ControlReply, detokenizer: int | None) -> None:
        if detokenizer is None:
            live = self._links.outbox.peers("detokenizer")
            detokenizer = live[reply.worker % len(live)] if live else 0
        self.scheduler.outgoing.send(detokenizer, reply)

    def _show_counters(self) -> None:
        scheduler = self.scheduler
        self._slot.update(
            steps=scheduler.planner.step,
            waiting=scheduler.waiting_requests,
            running=len(scheduler.planner.running),
            free_pages=scheduler.memory.available(probe=True),
            total_pages=scheduler.memory.pool.usable,
            cached_pages=scheduler.memory.cache.pages,
            pending=int(scheduler.pending),
        )

    def _info(self) -> dict[str, int]:
        capacity = self._executor.capacity
        return {
            "kv_tokens": (capacity.pages - 1) * capacity.page_size,
            "kv_bytes": capacity.kv_bytes,
            "weight_bytes": capacity.weight_bytes,
            "page_size": capacity.page_size,
            "max_rows": capacity.max_rows,
            "max_running_requests": self.scheduler.max_running,
            "longest_request_tokens": self.scheduler.memory.usable_pages * capacity.page_size,
            "vocab_size": capacity.vocab_size,
        }


def main(config: EngineConfig, spec: ProcessSpec) -> int:
    # Hundreds of thousands of objects come with torch and live as long as the process: looking through them for garbage
    # while they come makes a start a tenth longer, and later holds steps up by tens of milliseconds.
    gc.disable()
    grammar = GrammarStart(config)
    # At the first start nobody waits yet, and no first request of any kind should wait long. Later starts are
    # recoveries, in which everybody waits for the weights and few for a grammar.
    first = spec.incarnation == 1
    if first:
        grammar.fork_worker()
    with joined(spec) as (links, board):
        slot = board.slot(spec.board_slot)

        def on_progress(what: str, done: int, total: int) -> None:
            slot.beat()
            links.report(Progress(peer_of(spec), what, done, total))

        if first:
            grammar.begin()
        executor = build_executor(config, spec, links.outbox, on_progress)
        loop = SchedulerLoop(config, spec, links, slot, executor, grammar)
        loop.scheduler.constraints.start()
        if first:
            warm_up(executor)
            loop.scheduler.constraints.wait()
        gc.freeze()
        gc.enable()
        loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(run_process(main))
