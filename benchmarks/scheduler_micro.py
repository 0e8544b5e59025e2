"""What the scheduler itself costs: planning and applying steps, matching and inserting prefixes, evicting pages.

    python benchmarks/scheduler_micro.py [--rows 256] [--tokens 8192] [--steps 200]

No model and no torch: the executor draws the same token everywhere. Times are CPU time: medians, and the 99th percentile.
"""

import argparse
import random
import statistics
import time
from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from protocol.ids import pack_ids
from protocol.plan import BatchPlan, Capacity, GrammarMasks, StepResult
from protocol.requests import EngineRequest
from protocol.sampling import SamplingParameters
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.server_args import ServerArgs
from scheduler.grammar.interface import GrammarBackend
from scheduler.radix_cache import RadixCache
from scheduler.scheduler import Scheduler, Surroundings

PAGE_SIZE = 16
VOCABULARY = 50_000


class ConstantExecutor:
    """Draws token 7 for everybody, at once."""

    def __init__(self, pages: int, rows: int) -> None:
        self.capacity = Capacity(pages, PAGE_SIZE, rows, VOCABULARY, 0, 0)
        self._plans: list[BatchPlan] = []

    def launch(self, plan: BatchPlan) -> None:
        self._plans.append(plan)

    def sample(self, masks: GrammarMasks | None) -> None:
        pass

    def collect(self) -> StepResult:
        plan = self._plans.pop(0)
        draws = array("i")
        draws.frombytes(plan.draws)
        return StepResult(plan.step, pack_ids([7] * sum(draws)))

    def statistics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


def no_backend() -> "Future[GrammarBackend]":
    return Future()


def make_config(rows: int, tokens: int) -> EngineConfig:
    model = ModelDescription("none", "", "dummy", ("none",), "None", {}, 2 * tokens, VOCABULARY, (), None, "")
    return EngineConfig(
        args=ServerArgs(),
        model=model,
        run_dir="",
        device="cpu",
        dtype="float32",
        quantization="none",
        attention_backend="torch",
        model_impl="native",
        page_size=PAGE_SIZE,
        kv_tokens=None,
        max_running_requests=rows,
        max_batch_tokens=rows + 65_536,
        chunked_prefill_size=65_536,
        lookahead=0,
        threads=1,
        tool_call_parser=None,
        reasoning_parser=None,
        version="0",
    )


def microseconds(work: Callable[[], object]) -> float:
    began_ns = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - began_ns) / 1000


def show(what: str, samples_us: Iterable[float]) -> None:
    ordered = sorted(samples_us)
    print(f"{what:<58} {statistics.median(ordered):>9.0f} us   p99 {ordered[int(len(ordered) * 0.99)]:>9.0f} us")


def measure_steps(rows: int, tokens: int, steps: int) -> None:
    """Decode steps of `rows` running requests with prompts of `tokens`, planned and applied."""
    pages = rows * (tokens // PAGE_SIZE + (steps + 500) // PAGE_SIZE + 4)  # nobody has to wait for pages
    executor = ConstantExecutor(pages, rows + 1)
    sent: list[object] = []
    around = Surroundings(executor, lambda detokenizer, message: sent.append(message), no_backend)
    scheduler = Scheduler(make_config(rows, tokens), around)
    rng = random.Random(1)
    sampling = SamplingParameters(max_tokens=steps + 500, ignore_eos=True)
    submits = []
    for number in range(rows):
        prompt = pack_ids([rng.randrange(VOCABULARY) for _ in range(tokens)])
        message = EngineRequest(f"0-{number}", prompt, sampling)
        submits.append(microseconds(lambda message=message: scheduler.submit(message, 1.0)))  # type: ignore[misc]
    show(f"submit a request of {tokens} tokens", submits)
    while len(scheduler.planner.running) < rows or any(s.output_tokens < 2 for s in scheduler.planner.running):
        scheduler.turn(1.0)
    plans, applies, turns = [], [], []
    for _ in range(steps):
        began_ns = time.thread_time_ns()
        planned = scheduler.planner.plan(1.0)
        planned_ns = time.thread_time_ns()
        assert planned is not None
        plan, record = planned
        executor.launch(plan)
        result = executor.collect()
        collected_ns = time.thread_time_ns()
        scheduler.results.apply(record, result)
        scheduler.outgoing.flush()
        applied_ns = time.thread_time_ns()
        plans.append((planned_ns - began_ns) / 1000)
        applies.append((applied_ns - collected_ns) / 1000)
        turns.append(plans[-1] + applies[-1])
    show(f"plan a step of {rows} decoding rows at {tokens} tokens", plans)
    show("apply its result (append, stop, publish pages, outputs)", applies)
    show("both", turns)


def measure_cache(tokens: int, rounds: int) -> None:
    """Match and insert of prompts that share half their length; eviction from a full tree."""
    rng = random.Random(2)
    tree = RadixCache(PAGE_SIZE)
    shared = [rng.randrange(VOCABULARY) for _ in range(tokens // 2)]
    prompts = [pack_ids(shared + [rng.randrange(VOCABULARY) for _ in range(tokens // 2)]) for _ in range(rounds)]
    pages, next_page = tokens // PAGE_SIZE, 1
    inserts, matches, evictions = [], [], []
    for prompt in prompts:
        began_ns = time.thread_time_ns()
        tip, cached = tree.acquire("", prompt, pages)
        new = list(range(next_page, next_page + pages - len(cached)))
        tip, _ = tree.extend(tip, prompt[len(cached) * PAGE_SIZE * 4 :], new)
        tree.release(tip)
        inserts.append((time.thread_time_ns() - began_ns) / 1000)
        next_page += len(new)
    for prompt in prompts:
        matches.append(microseconds(lambda prompt=prompt: tree.match("", prompt, pages)))  # type: ignore[misc]
    total = tree.pages
    while tree.evictable:
        evictions.append(microseconds(lambda: tree.evict(16)))
    show(f"insert a prompt of {tokens} tokens, half of it cached", inserts)
    show(f"match a prompt of {tokens} tokens, all of it cached", matches)
    show(f"evict 16 of {total} pages", evictions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    measure_steps(arguments.rows, arguments.tokens, arguments.steps)
    measure_cache(arguments.tokens, 256)


if __name__ == "__main__":
    main()
