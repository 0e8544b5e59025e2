"""The scheduler: messages in, one turn of the loop after the other, messages out. No sockets and no clock of its own."""

import itertools
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import msgspec

from protocol.errors import LOST, ErrorInfo, key_limit_error
from protocol.ids import count_ids, pack_ids
from protocol.outputs import Admitted, Finish, Refused, StopFound
from protocol.plan import Executor, GrammarMasks
from protocol.requests import AbortRequest, EngineRequest
from runtime.engine_config import EngineConfig
from runtime.tombstones import Tombstones, aborts
from scheduler.admission import Admission, queue_timeout_error, timeout_error
from scheduler.constraints import Constraints
from scheduler.deadlines import Deadlines
from scheduler.grammar.interface import GrammarBackend, GrammarTemplate
from scheduler.memory import Memory
from scheduler.outgoing import Outgoing, Send
from scheduler.plan_builder import StepRecord
from scheduler.planner import Limits, Planner
from scheduler.reasoning import MarkerEnds
from scheduler.reserve import ChunkLimit
from scheduler.results import Results
from scheduler.sequence import Rank, Request, Sequence, State
from scheduler.speculation import Speculation
from scheduler.waiting import WaitingQueue

PROBE_TOKENS = 16
PROMPT_TAIL = 32
"""Prompt ids that the detokenizer gets, to decode across the border between prompt and answer."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surroundings:
    """What the scheduler reaches out to."""

    executor: Executor
    send: Send
    build_grammar_backend: Callable[[], "Future[GrammarBackend]"]
    before_launch: Callable[[StepRecord], None] = lambda record: None
    marker_ends: MarkerEnds | None = None


class Scheduler:
    """Single-threaded: `handle` and `turn` are called by one loop, which passes the time (`time.time()`)."""

    def __init__(self, config: EngineConfig, around: Surroundings, replica: int = 0) -> None:
        capacity = around.executor.capacity
        self._config = config
        self._replica = replica
        self.executor = around.executor
        self._before_launch = around.before_launch
        self._marker_ends = around.marker_ends
        probe_pages = min(-(-PROBE_TOKENS // capacity.page_size), max(0, capacity.pages - 2))
        self.memory = Memory(capacity, not config.args.disable_radix_cache, probe_pages)
        self.queue = WaitingQueue(config.args.schedule_policy, self._cached_pages)
        max_running = max(1, min(config.max_running_requests, capacity.max_rows - 1))
        chunks = ChunkLimit(config.chunked_prefill_size, config.args.max_itl_ms, capacity.page_size)
        limits = Limits(capacity.max_rows, max_running, config.max_batch_tokens)
        speculation = Speculation(config.draft_tokens)
        self.planner = Planner(self.memory, self.queue, limits, chunks, speculation)
        self.constraints = Constraints(around.build_grammar_backend, capacity.vocab_size)
        self.outgoing = Outgoing(around.send)
        self.results = Results(self.planner, self.constraints, self.outgoing)
        self.admission = Admission(
            longest_tokens=self.memory.usable_pages * capacity.page_size,
            context_length=config.model.context_length,
            max_queued=config.args.max_queued_requests,
        )
        self.requests: dict[str, Request] = {}
        self.paused = False
        self.books_repaired = 0
        self.max_running = max_running
        self._tombstones = Tombstones()
        self._deadlines = Deadlines(lambda request: self.requests.get(request.id) is request)
        self._order = itertools.count()
        self._in_flight: deque[StepRecord] = deque()
        self._started_and_ended = 0

    # messages

    def submit(self, message: EngineRequest, now: float) -> None:
        """Takes a request, or refuses it; a newer attempt supersedes, an older or ended one is ignored."""
        known = self.requests.get(message.request_id)
        over = self._tombstones.covers(message.request_id, message.attempt, message.arrival_s)
        if over or (known is not None and known.attempt >= message.attempt):
            return
        if known is not None:
            # Another detokenizer would wait for the rest of the older attempt for ever.
            moved = known.message.detokenizer != message.detokenizer
            self._end_request(known, Finish("abort") if moved else None)
            self._forget_ended(now)
        if not message.arrival_s:
            message = msgspec.structs.replace(message, arrival_s=now)
        error = self.admission.refusal(message, now)
        request = Request(message, self._rank(message), self._config.model.context_length, self._marker_ends)
        if error is None and not message.probe and not request.resumed:
            error = self._over_key_limit(message) or self._make_room(request)
        if error is not None:
            self._refuse(request, error)
            return
        request.submitted_s = now
        self.requests[request.id] = request
        self._deadlines.add(request)
        if message.sampling.grammar is not None:
            self.constraints.compile(request)
        else:
            for sequence in request.sequences:
                sequence.follow_output()
            self._enqueue(request)

    def abort(self, message: AbortRequest, now: float) -> None:
        """Ends what the message names, wherever it is; what has not arrived yet will not run."""
        if message.request_id:
            self._tombstones.bury(message.request_id, message.attempt)
            named = self.requests.get(message.request_id)
            candidates = [named] if named is not None else []
        else:
            if message.abort_all or message.all_of_worker is not None:
                self._tombstones.bury_worker(message.all_of_worker, now)
            candidates = list(self.requests.values())
        for request in candidates:
            if aborts(message, request.id, request.attempt):
                self._end_request(request, Finish("abort"))

    def stop_found(self, message: StopFound) -> None:
        """The detokenizer has written the end of this choice."""
        request = self.requests.get(message.request_id)
        if request is not None and request.attempt == message.attempt and message.index < len(request.sequences):
            self.results.finish(request.sequences[message.index], None)

    def drop_worker(self, worker: int, now: float) -> None:
        """An HTTP worker is gone, and its clients with it."""
        self.abort(AbortRequest("", all_of_worker=worker), now)

    def detokenizer_died(self, detokenizer: int, at_s: float) -> None:
        """Its requests end without a word: what their owners sent before they heard of the death, they submit again by
        themselves. What came since was lost with the dead process's queue, and they have to be told."""
        for request in list(self.requests.values()):
            if request.message.detokenizer == detokenizer:
                self._end_request(request, None)
                if request.submitted_s >= at_s:
                    error = ErrorInfo("the detokenizer died", 503, "service_unavailable_error", code=LOST)
                    self._refuse(request, error)

    def end_all(self, error: ErrorInfo) -> None:
        """Whatever has not ended gets this error."""
        for request in list(self.requests.values()):
            self._end_request(request, Finish("error", error=error))
        self.outgoing.flush()

    # the loop

    @property
    def steps_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def pending(self) -> bool:
        """True if a step should come soon: what a watchdog looks at."""
        return bool(self._in_flight) or (not self.paused and bool(self.planner.running or len(self.queue)))

    @property
    def waiting_requests(self) -> int:
        """Requests of which nothing has been computed yet."""
        return len(self.requests) - (self.planner.started_requests - self._started_and_ended)

    def turn(self, now: float) -> bool:
        """One step: plan, launch, collect what is older, sample. False if there was nothing to do."""
        self._poll_constraints()
        self._expire(now)
        planned = None if self.paused else self.planner.plan(now)
        if planned is None:
            self._forget_ended(now)
            if self._in_flight:
                self._collect(now)
                return True
            self.outgoing.flush()
            return False
        plan, record = planned
        self._before_launch(record)
        if record.suspect:
            self._collect_until(0, now)  # if this step ends the process, nobody else's is under suspicion
        self.executor.launch(plan)
        lookahead = 0 if record.suspect else self._config.lookahead
        self.constraints.request(record.masked)
        # A mask depends on every draw before it.
        self._collect_until(0 if record.masked else max(0, lookahead - 1), now)
        masks = GrammarMasks(record.step, self.constraints.masks(record)) if record.masked else None
        self.executor.sample(masks)
        self._in_flight.append(record)
        self._collect_until(lookahead, now)
        return True

    def wake_after_s(self, now: float) -> float:
        """How long an idle loop may sleep if no message comes."""
        soon = 0.002 if self.constraints.waiting else 1.0
        return min(soon, max(0.0, self._deadlines.next_s() - now))

    def check_books(self) -> list[str]:
        """Looks for lost and doubly held pages; what is found is logged, counted, and repaired when nothing is in flight."""
        problems = self.memory.check(self.planner.running)
        if problems:
            logger.error("the page books are wrong: %s", "; ".join(problems))
            self.books_repaired += 1
            self._collect_until(0, 0.0)
            self.planner.start_over()
        return problems

    def cached_tokens(self, namespace: str, prompt_ids: bytes) -> int:
        """Leading tokens of the prompt that the cache holds now."""
        size = self.memory.page_size
        return size * self.memory.cache.match(namespace, prompt_ids, max(0, count_ids(prompt_ids) - 1) // size)

    def _collect_until(self, left: int, now: float) -> None:
        while len(self._in_flight) > left:
            self._collect(now)

    def _collect(self, now: float) -> None:
        record = self._in_flight.popleft()
        result = self.executor.collect()
        self.outgoing.step = record.step
        self.planner.observe(record, result.forward_us)
        self.results.apply(record, result)
        self._forget_ended(now)
        self.outgoing.flush()

    def _rank(self, message: EngineRequest) -> Rank:
        priority = message.priority if self._config.args.schedule_policy == "priority" else 0
        return (not message.probe, -priority, message.arrival_s, next(self._order), 0)

    def _cached_pages(self, sequence: Sequence) -> int:
        limit = self.memory.cacheable_pages(sequence)
        ids = sequence.tokens[: limit * self.memory.page_size].tobytes()
        return self.memory.cache.match(sequence.request.message.namespace, ids, limit)

    def _over_key_limit(self, message: EngineRequest) -> ErrorInfo | None:
        """The 429 of an API key that has as many requests here as it may. An HTTP worker refuses earlier what it knows
        of; this counts for all of them together."""
        limit, key = self._config.args.max_running_per_key, message.fairness_key
        if limit is None or not key:
            return None
        held = sum(other.message.fairness_key == key and other.unfinished > 0 for other in self.requests.values())
        return key_limit_error(limit) if held >= limit else None

    def _make_room(self, request: Request) -> ErrorInfo | None:
        """The 503 of a full queue, unless a waiting request of lower priority can go instead."""
        waiting = self.waiting_requests
        if not self.admission.is_full(waiting):
            return None
        error = self.admission.overloaded(waiting)
        lowest = self.queue.lowest() if self._config.args.evict_low_priority else None
        if lowest is None or lowest.rank[1] <= request.sequences[0].rank[1]:
            return error
        self._end_request(lowest.request, Finish("error", error=error))
        return None

    def _refuse(self, request: Request, error: ErrorInfo) -> None:
        self._tombstones.bury(request.id, request.attempt)
        self.outgoing.send(request.message.detokenizer, Refused(request.id, request.attempt, error))

    def _enqueue(self, request: Request) -> None:
        """Says Admitted, and lets the choices wait for their turn."""
        message = request.message
        prompt = request.sequences[0].tokens[: request.sequences[0].prompt_length]
        self.outgoing.send(
            message.detokenizer,
            Admitted(
                request_id=request.id,
                attempt=request.attempt,
                prompt_tokens=len(prompt),
                n=message.n,
                prompt_tail=pack_ids(prompt[-PROMPT_TAIL:]),
                prompt_ids=message.prompt_ids if message.wants_prompt_ids else None,
                detokenize=message.detokenize,
                eos_token_ids=message.eos_token_ids,
                reasoning_span=message.reasoning_span,
                adjustments=message.adjustments,
                resume=message.resume,
                replica=self._replica,
            ),
        )
        for sequence in request.sequences:
            if sequence.state is State.COMPILING:
                sequence.move(State.WAITING)
                self.queue.add(sequence)
                self.results.begin(sequence)
        if request.unfinished == 0 and request not in self.results.ended:
            self.results.ended.append(request)

    def _poll_constraints(self) -> None:
        if not self.constraints.waiting:
            return
        for request, outcome in self.constraints.poll():
            if isinstance(outcome, ErrorInfo):
                self.requests.pop(request.id, None)
                self._refuse(request, outcome)
            else:
                self._constrain(request, outcome)
        for sequence, error in self.constraints.retry_slow():
            self.results.finish(sequence, Finish("error", error=error))

    def _constrain(self, request: Request, template: GrammarTemplate) -> None:
        for sequence in request.sequences:
            if sequence.state is State.FINISHED:
                continue
            sequence.grammar = template.new_state(request.end_ids)
            if not sequence.follow_output():
                self.requests.pop(request.id, None)
                self._refuse(request, ErrorInfo("the output so far does not fit the grammar", 500, "server_error"))
                return
        self._enqueue(request)

    def _end_request(self, request: Request, finish: Finish | None) -> None:
        """Ends every choice that has not ended. A request that was not admitted yet is refused instead."""
        if any(sequence.state is State.COMPILING for sequence in request.sequences):
            self.constraints.cancel(request)
            self.requests.pop(request.id, None)
            if finish is not None:
                aborted = ErrorInfo("the request was aborted", 499, code="aborted")
                self._refuse(request, finish.error or aborted)
            return
        for sequence in request.sequences:
            self.results.finish(sequence, finish)

    def _expire(self, now: float) -> None:
        for request, in_queue in self._deadlines.passed(now):
            if self.requests.get(request.id) is not request:
                continue
            if not in_queue:
                self._end_request(request, Finish("error", error=timeout_error("the request's deadline has passed")))
            elif not request.started:
                self._end_request(request, Finish("error", error=queue_timeout_error()))

    def _forget_ended(self, now: float) -> None:
        for request in self.results.ended:
            if self.requests.get(request.id) is request:
                del self.requests[request.id]
            self._started_and_ended += request.started
            self._tombstones.bury(request.id, request.attempt)
            self.admission.request_ended(now)
        self.results.ended.clear()
