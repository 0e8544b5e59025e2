"""What the next step computes: decode rows first, then prompt chunks, then whoever can come in from the queue."""

import bisect
from dataclasses import dataclass

from protocol.plan import BatchPlan
from scheduler.memory import Memory
from scheduler.plan_builder import PlanBuilder, StepRecord
from scheduler.promises import Promises, is_worth_waiting_for
from scheduler.reserve import ChunkLimit, GrowthReserve
from scheduler.sequence import Request, Sequence, State
from scheduler.speculation import Speculation
from scheduler.waiting import WaitingQueue


@dataclass(frozen=True)
class Limits:
    """`rows` are the executor's row slots; ordinary requests use at most `max_running` of them."""

    rows: int
    max_running: int
    max_batch_tokens: int


class Planner:
    """Owns the running choices and their row slots, and moves choices between the queue and them.

    There are no phases: every step is one pass over the running choices under one token budget. When pages run out, the
    choice of the lowest priority, then the youngest, is retracted; never the oldest of the highest priority, so that
    one always gets on and somebody always finishes.
    """

    def __init__(
        self, memory: Memory, queue: WaitingQueue, limits: Limits, chunk_limit: ChunkLimit, speculation: Speculation
    ) -> None:
        self.memory = memory
        self.queue = queue
        self.running: list[Sequence] = []
        self.reserve = GrowthReserve(memory.page_size)
        self.chunk_limit = chunk_limit
        self.speculation = speculation
        self.step = 0
        self.retractions = 0
        self.started_requests = 0
        self.suspect: Request | None = None
        self._suspect_went_last = False
        self._promises = Promises(memory.page_size)
        self._limits = limits
        self._free_slots = list(range(limits.rows - 1, -1, -1))
        self._released_slots: list[int] = []
        self._short_of_pages = False

    def plan(self, now: float) -> tuple[BatchPlan, StepRecord] | None:
        """The next step, or None if no row can go on before a step in flight is collected (or something arrives)."""
        if self._short_of_pages:
            self._short_of_pages = False
            victim = self._victim()
            if victim is not None:
                self._retract(victim)
        # A suspect's rows are alone in their steps, and take turns with everybody else's.
        former = self.suspect
        turns = (False,) if former is None else (not self._suspect_went_last, self._suspect_went_last)
        for suspects in turns:
            builder = PlanBuilder(self.step + 1, suspects)
            self._fill(builder, suspects, now)
            if builder.record.rows:
                self._suspect_went_last = suspects
                self.step += 1
                self.memory.launched_step = self.step
                if builder.record.decode_rows:
                    self.reserve.step_went_well()
                released, self._released_slots = self._released_slots, []
                return builder.finish(released), builder.record
        return self.plan(now) if self.suspect is not former else None

    def computed(self, sequence: Sequence) -> None:
        """A step has computed more of the choice: its full pages go into the tree."""
        if sequence.computed < sequence.publish_at:
            return
        before = sequence.tree_pages
        self.memory.publish(sequence)
        if sequence.tree_pages != before:
            self._promises.renew(sequence)

    def observe(self, record: StepRecord, step_us: int) -> None:
        """What a step took."""
        if not record.drafted:
            self.chunk_limit.observe(record.prompt_tokens, record.decode_rows, step_us)
        if not record.prompt_tokens:
            self.speculation.cost.observe(record.decode_rows + record.drafted, step_us)

    def step_collected(self, sequence: Sequence) -> None:
        """To be called for every row of a collected step: retracted and ended choices let go when nothing reads them."""
        if sequence.in_flight == 0:
            if sequence.state is State.FINISHED:
                self.let_go(sequence)
            elif sequence.recalled:
                self._back_to_queue(sequence)

    def let_go(self, sequence: Sequence) -> None:
        """An ended choice gives up its row and pages, as soon as no step that reads them is in flight."""
        if sequence.slot < 0 or sequence.in_flight:
            return
        self._give_up_row(sequence)

    def ended(self, request: Request) -> None:
        """No choice of the request is left."""
        if self.suspect is request:
            self.suspect = None

    def start_over(self) -> None:
        """Sends every running choice back to the queue and begins with an empty pool, whatever the books say; no step
        is in flight."""
        for sequence in self.running:
            assert sequence.in_flight == 0
            self._promises.withdraw(sequence)
            self._free_slots.append(sequence.slot)
            self._released_slots.append(sequence.slot)
            sequence.forget_row()
            self._to_queue(sequence)
        self.running.clear()
        self.memory.reset()

    def _fill(self, builder: PlanBuilder, suspects: bool, now: float) -> None:
        rows = self.running
        if self.suspect is not None:
            rows = [sequence for sequence in rows if sequence.request.message.suspect is suspects]
        budget = self._plan_decodes(builder, list(rows))
        chunk = min(budget, self.chunk_limit.tokens(builder.record.decode_rows))
        chunk = self._plan_prompts(builder, [s for s in rows if s.state is State.PREFILLING], chunk)
        if chunk > 0 and len(self.queue):
            self._admit(builder, chunk, suspects, now)

    def _plan_decodes(self, builder: PlanBuilder, rows: list[Sequence]) -> int:
        """One token for every row that decodes (more where text was forced or guessed); returns what is left of the
        budget."""
        budget, page_size = self._limits.max_batch_tokens, self.memory.page_size
        decoding = State.DECODING
        spare = self._tokens_for_drafts(rows, budget)
        for sequence in rows:
            if sequence.state is not decoding or sequence.recalled or sequence.slow_mask:
                continue
            known = len(sequence.tokens) + sequence.drawing
            if known >= sequence.end_length:
                continue  # its last draw is in flight
            planned = sequence.planned
            count = min(known - planned, budget)
            if count <= 0:
                break
            missing = -(-(planned + count) // page_size) - len(sequence.pages)
            if missing > 0 and not self._secure(sequence, missing, builder.step):
                continue
            draft = None
            if spare > 0 and count == 1 and sequence.may_speculate:
                room = min(spare, sequence.end_length - known - 1)
                draft = self._held(sequence, self.speculation.draft(sequence, len(rows), room))
                spare -= len(draft)
                budget -= len(draft)
            builder.add(sequence, count, 1 if planned + count == known else 0, draft)
            builder.record.decode_rows += 1
            budget -= count
        return budget

    def _tokens_for_drafts(self, rows: list[Sequence], budget: int) -> int:
        """0 while prompts wait: they have more use for a step's time, and what streams alone take is to be seen."""
        if not self.speculation.enabled or len(self.queue) or any(s.state is State.PREFILLING for s in rows):
            return 0
        return budget - len(rows)

    def _held(self, sequence: Sequence, draft: list[int]) -> list[int]:
        """As much of the draft as there are pages for; nobody is retracted for a guess."""
        if not draft:
            return draft
        missing = self.memory.pages_for(sequence.planned + 1 + len(draft)) - len(sequence.pages)
        if missing <= 0 or self.memory.grow(sequence, missing):
            return draft
        return draft[: len(sequence.pages) * self.memory.page_size - sequence.planned - 1]

    def _plan_prompts(self, builder: PlanBuilder, rows: list[Sequence], chunk: int) -> int:
        """The next chunk of every prompt that is being read, as far as the chunk budget goes; returns what is left."""
        for sequence in rows:
            if chunk <= 0:
                break
            if sequence.recalled or sequence.state is not State.PREFILLING:
                continue
            count = min(len(sequence.tokens) - sequence.planned, chunk)
            missing = self.memory.pages_for(sequence.planned + count) - len(sequence.pages)
            if count <= 0 or (missing > 0 and not self._secure(sequence, missing, builder.step)):
                continue
            self._add_chunk(builder, sequence, count)
            chunk -= count
        return chunk

    def _add_chunk(self, builder: PlanBuilder, sequence: Sequence, count: int) -> None:
        length = len(sequence.tokens)
        draws = 1 if sequence.planned + count == length and length < sequence.end_length else 0
        builder.add(sequence, count, draws)
        builder.record.prompt_tokens += count
        if draws:
            sequence.move(State.DECODING)

    def _admit(self, builder: PlanBuilder, chunk: int, suspects: bool, now: float) -> None:
        """Takes choices from the queue, in its order, until rows, tokens or pages run out."""
        outstanding = -1
        ordinary = sum(sequence.rank[0] for sequence in self.running)
        if not self._free_slots:
            return
        for sequence in self.queue.candidates(now):
            ordinary_one = sequence.rank[0]
            if chunk <= 0 or not self._free_slots or (ordinary_one and ordinary >= self._limits.max_running):
                break
            if self._keep_apart(sequence, suspects):
                continue
            self._leave_stalled_producer(sequence, builder.step)
            if sequence.producer is not None:
                continue
            request = sequence.request
            if request.scorer is not None and request.scorer is not sequence and request.prompt_logprobs is None:
                continue
            cached = self.memory.acquire(sequence)
            if self._finds_producer(sequence, cached, builder.step):
                self.memory.release(sequence)
                continue
            if outstanding < 0:
                outstanding = self.reserve.outstanding(self.running)
            count = min(len(sequence.tokens) - sequence.planned, chunk)
            wanted = self.memory.pages_for(len(sequence.tokens)) - cached + self.reserve.growth(sequence)
            crowded = ordinary_one and ordinary and self.memory.available() < wanted + outstanding
            first = self.memory.pages_for(sequence.planned + count) - cached
            if crowded or not self.memory.grow(sequence, first):
                self.memory.release(sequence)
                break
            outstanding += wanted - first
            ordinary += ordinary_one
            self._seat(builder, sequence, cached)
            self._add_chunk(builder, sequence, count)
            chunk -= count

    def _seat(self, builder: PlanBuilder, sequence: Sequence, cached: int) -> None:
        """From the queue into a row slot."""
        self.queue.remove(sequence)
        sequence.move(State.PREFILLING)
        sequence.slot = self._free_slots.pop()
        bisect.insort(self.running, sequence, key=lambda other: other.rank)
        request = sequence.request
        if not request.started:
            request.started = True
            self.started_requests += 1
            # Of the prompt: forced text that the choice begins with may have been found, too.
            request.cached_tokens = min(cached * self.memory.page_size, sequence.prompt_length)
        builder.start(sequence)
        self._promises.announce(sequence)

    def _keep_apart(self, sequence: Sequence, suspects: bool) -> bool:
        """True if the choice must not be in this step because it is, or is not, a suspect."""
        if not sequence.request.message.suspect:
            return suspects
        if self.suspect is None:
            self.suspect = sequence.request
        return not suspects or self.suspect is not sequence.request

    def _finds_producer(self, sequence: Sequence, cached: int, step: int) -> bool:
        promise = self._promises.find(sequence, cached, self.memory.cacheable_pages(sequence))
        if promise is None:
            return False
        producer, shared_pages = promise
        if not is_worth_waiting_for(producer, shared_pages, self.memory.page_size, step):
            return False
        sequence.producer, sequence.shared_pages = promise
        producer.lent_priority = max(producer.lent_priority, -sequence.rank[1])
        return True

    def _leave_stalled_producer(self, sequence: Sequence, step: int) -> None:
        producer = sequence.producer
        if producer is None:
            return
        if not is_worth_waiting_for(producer, sequence.shared_pages, self.memory.page_size, step):
            sequence.producer = None

    def _secure(self, sequence: Sequence, count: int, step: int) -> bool:
        """Gets the choice `count` pages, by retraction if it must be; False if it has to sit this step out."""
        while not self.memory.grow(sequence, count):
            leaving = (other for other in self.running if other.recalled or other.state is State.FINISHED)
            if sum(len(other.pages) for other in leaving) >= count:
                return False  # enough comes back when the steps in flight are collected
            victim = self._victim()
            if victim is None:
                return False
            if victim.last_step == step:
                self._short_of_pages = True  # it is in this plan already: it goes before the next one
                return False
            self._retract(victim)
            if victim is sequence or victim.in_flight:
                return False
        return True

    def _victim(self) -> Sequence | None:
        """Who is retracted next: lowest priority, then youngest; never a probe, never the first of all."""
        ordinary = [s for s in self.running if s.rank[0] and not s.recalled and s.state is not State.FINISHED]
        if len(ordinary) < 2:
            return None
        return max(ordinary, key=lambda sequence: (-sequence.lent_priority, sequence.rank[2:]))

    def _retract(self, sequence: Sequence) -> None:
        sequence.recalled = True
        sequence.retractions += 1
        self.retractions += 1
        self.reserve.retracted()
        if sequence.in_flight == 0:
            self._back_to_queue(sequence)

    def _back_to_queue(self, sequence: Sequence) -> None:
        self._give_up_row(sequence)
        self._to_queue(sequence)

    def _to_queue(self, sequence: Sequence) -> None:
        sequence.recalled = False
        request = sequence.request
        if sequence.scores_prompt:
            del request.scored[1:]
        sequence.move(State.WAITING)
        self.queue.add(sequence)

    def _give_up_row(self, sequence: Sequence) -> None:
        self._promises.withdraw(sequence)
        self._free_slots.append(sequence.slot)
        self._released_slots.append(sequence.slot)
        position = bisect.bisect_left(self.running, sequence.rank, key=lambda other: other.rank)
        assert self.running[position] is sequence
        del self.running[position]
        self.memory.release(sequence)
