"""Random lives of many requests: one end each, the right ids, no page lost, and everybody finishes."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.ids import pack_ids
from protocol.outputs import StopFound
from protocol.requests import ChoiceProgress
from protocol.sampling import GrammarSpec, ReasoningSpan, SamplingParameters
from tests.scheduler.bench import Bench, make_config
from tests.scheduler.fake_executor import FakeExecutor
from tests.scheduler.fake_grammar import expected_constrained
from tests.scheduler.fake_model import EOS, HABITUAL, PAGE

SPAN = ReasoningSpan((50,), (51, 52), prompt_opened=True)
STEPS = [[1, 2, 3], [4], [5], [6, 7], [8, 9], [10]]
TEXT = str(STEPS)


@dataclass(frozen=True)
class Wanted:
    """A request as the test draws it. Prompts begin with one of two preambles, so that they share pages."""

    preamble: int
    tail: tuple[int, ...]
    max_tokens: int
    n: int
    seed: int
    priority: int
    grammar: bool
    span: bool
    budget: int | None
    logprobs: bool
    suspect: bool
    salted: bool
    endless: bool

    @property
    def ends_late(self) -> bool:
        return self.endless and not self.grammar

    @property
    def prompt(self) -> list[int]:
        return [10 + self.preamble] * (11 * self.preamble) + list(self.tail)

    def expected(self, index: int) -> list[int]:
        return expected_constrained(
            self.prompt,
            self.seed + index,
            self.max_tokens,
            STEPS if self.grammar else None,
            SPAN if self.span else None,
            self.budget if self.span else None,
            self.endless,
        )


REQUESTS = st.builds(
    Wanted,
    preamble=st.integers(0, 2),
    tail=st.lists(st.integers(0, 3), min_size=1, max_size=9).map(tuple),
    max_tokens=st.integers(1, 24),
    n=st.sampled_from([1, 1, 1, 3]),
    seed=st.integers(0, 5) | st.integers(HABITUAL, HABITUAL + 5),
    priority=st.integers(0, 3),
    grammar=st.booleans(),
    span=st.booleans(),
    budget=st.sampled_from([None, 0, 2, 5]),
    logprobs=st.booleans(),
    suspect=st.sampled_from([False] * 9 + [True]),
    salted=st.booleans(),
    endless=st.booleans(),
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), REQUESTS),
        st.tuples(st.just("submit"), REQUESTS),
        st.tuples(st.just("turns"), st.integers(1, 8)),
        st.tuples(st.just("abort"), st.integers(0, 20)),
        st.tuples(st.just("stop"), st.integers(0, 20)),
        st.tuples(st.just("again"), st.integers(0, 20)),
        st.tuples(st.just("flush"), st.just(0)),
    ),
    max_size=40,
)


class Life:
    """Runs the actions, and remembers what each choice must have answered."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.wanted: list[Wanted] = []
        self.attempts: list[int] = []
        self.before: dict[tuple[int, int], list[int]] = {}
        self.stopped: set[tuple[int, int]] = set()
        self.aborted: set[int] = set()

    def act(self, action: str, value: object) -> None:
        if action == "submit":
            assert isinstance(value, Wanted)
            self.wanted.append(value)
            self.attempts.append(0)
            self.submit(len(self.wanted) - 1)
            return
        assert isinstance(value, int)
        if action == "turns":
            for _ in range(value):
                self.bench.turn()
                self.check_books()
        elif action == "flush":
            self.bench.scheduler.memory.pool.give(
                self.bench.scheduler.memory.cache.evict(self.bench.scheduler.memory.cache.evictable)
            )
        elif self.wanted:
            number = value % len(self.wanted)
            if action == "abort":
                self.bench.abort(f"0-{number}")
                self.aborted.add(number)
            elif action == "stop":
                self.stop(number)
            elif number not in self.aborted:
                self.again(number)

    def submit(self, number: int) -> None:
        wanted = self.wanted[number]
        sampling = SamplingParameters(
            grammar=GrammarSpec("regex", TEXT) if wanted.grammar else None,
            thinking_budget=wanted.budget,
            ignore_eos=wanted.endless,
            logprobs=0 if wanted.logprobs else None,
        )
        progress = [
            ChoiceProgress(index, pack_ids(self.before.get((number, index), [])), self.done(number, index))
            for index in range(wanted.n)
        ]
        self.bench.submit(
            f"0-{number}",
            wanted.prompt,
            wanted.max_tokens,
            seed=wanted.seed,
            sampling=sampling,
            n=wanted.n,
            priority=wanted.priority,
            suspect=wanted.suspect,
            namespace="salt" if wanted.salted else "",
            reasoning_span=SPAN if wanted.span else None,
            attempt=self.attempts[number],
            resume=tuple(progress) if self.attempts[number] else (),
        )

    def done(self, number: int, index: int) -> bool:
        return (number, index) in self.stopped or any(
            self.bench.answer(f"0-{number}", index, a).finish for a in range(self.attempts[number] + 1)
        )

    def again(self, number: int) -> None:
        """As after a crash somewhere: the request comes again with what has been delivered."""
        for index in range(self.wanted[number].n):
            answer = self.bench.answer(f"0-{number}", index, self.attempts[number])
            self.before.setdefault((number, index), []).extend(answer.ids)
        self.attempts[number] += 1
        self.submit(number)

    def stop(self, number: int) -> None:
        answer = self.bench.answer(f"0-{number}", 0, self.attempts[number])
        if answer.finish is None and answer.ids:
            self.stopped.add((number, 0))
            self.bench.scheduler.stop_found(StopFound(f"0-{number}", self.attempts[number], 0, len(answer.ids)))

    def check_books(self) -> None:
        assert self.bench.scheduler.memory.check(self.bench.scheduler.planner.running) == []

    def check_answers(self) -> None:
        for number, wanted in enumerate(self.wanted):
            longest_tokens = self.bench.scheduler.memory.usable_pages * PAGE
            if f"0-{number}" in self.bench.refused:
                # Too large for the pool, or aborted while its grammar was compiled.
                assert len(wanted.prompt) + wanted.max_tokens > longest_tokens or number in self.aborted
                continue
            for index in range(wanted.n):
                ids = self.before.get((number, index), [])
                last = self.bench.answer(f"0-{number}", index, self.attempts[number])
                ids = ids + last.ids
                expected = wanted.expected(index)
                assert ids == expected[: len(ids)], (number, index)
                whole = number not in self.aborted and (number, index) not in self.stopped
                if not whole:
                    continue
                assert ids == expected
                finishes = [
                    answer.finish
                    for attempt in range(self.attempts[number] + 1)
                    if (answer := self.bench.answer(f"0-{number}", index, attempt)).finish
                ]
                assert [finish.reason for finish in finishes] == [
                    "stop" if ids[-1] == EOS and not wanted.ends_late else "length"
                ]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    actions=ACTIONS,
    ahead=st.sampled_from([(0, 0), (0, 1), (0, 6), (1, 0)]),
    pages=st.integers(14, 40),
    rows=st.integers(2, 6),
    policy=st.sampled_from(["fcfs", "lpm", "priority"]),
    cached=st.booleans(),
    slow_masks=st.sampled_from([0, 0, 1, 2]),
)
def test_everybody_gets_the_right_answer_once(
    actions: list[tuple[str, object]],
    ahead: tuple[int, int],
    pages: int,
    rows: int,
    policy: str,
    cached: bool,
    slow_masks: int,
) -> None:
    lookahead, draft_tokens = ahead
    config = make_config(lookahead, draft_tokens, schedule_policy=policy, disable_radix_cache=not cached)
    bench = Bench(config, FakeExecutor(pages, rows, late=lookahead > 0), slow_masks)
    life = Life(bench)
    for action, value in actions:
        life.act(action, value)
    bench.run()
    life.check_answers()
    assert bench.executor.most_in_flight <= lookahead + 1


def random_wanted(rng: random.Random) -> Wanted:
    return Wanted(
        preamble=rng.randrange(3),
        tail=tuple(rng.randrange(4) for _ in range(rng.randint(1, 9))),
        max_tokens=rng.choice([3, 10, 40, 50]),
        n=rng.choice([1, 1, 1, 3]),
        seed=rng.randrange(6) + rng.choice([0, HABITUAL]),
        priority=rng.randrange(4),
        grammar=rng.random() < 0.3,
        span=rng.random() < 0.3,
        budget=rng.choice([None, 0, 2, 5]),
        logprobs=rng.random() < 0.2,
        suspect=rng.random() < 0.05,
        salted=rng.random() < 0.3,
        endless=rng.random() < 0.5,
    )


@pytest.mark.parametrize("seed", range(24))
def test_long_random_lives(seed: int) -> None:
    """A hundred requests each, under pressure for rows and pages all the time."""
    rng = random.Random(seed)
    lookahead, draft_tokens = [(0, 0), (1, 0), (0, 5)][seed % 3]
    policy = rng.choice(["fcfs", "lpm", "priority"])
    config = make_config(lookahead, draft_tokens, schedule_policy=policy, disable_radix_cache=rng.random() < 0.2)
    executor = FakeExecutor(rng.randint(22, 60), rng.randint(3, 9), late=lookahead > 0)
    life = Life(Bench(config, executor, slow_masks=rng.choice([0, 0, 2])))
    life.bench.scheduler.planner.reserve.ratio = 0.0
    while len(life.wanted) < 100:
        action = rng.choices(["submit", "turns", "abort", "stop", "again", "flush"], [10, 10, 1, 1, 1, 0.2])[0]
        values: dict[str, object] = {"submit": random_wanted(rng), "turns": rng.randint(1, 6)}
        life.act(action, values.get(action, rng.randrange(1000)))
    life.bench.run(20_000)
    life.check_answers()
    assert executor.most_in_flight == lookahead + 1
    if seed == 3:
        assert life.bench.scheduler.planner.retractions > 10, "these lives are meant to be hard"
