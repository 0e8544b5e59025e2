"""Where a step's time goes: forward pass, output head, draw, and everything round them, for decode steps and prompts.

    python -m benchmarks.step_profile [--model-path smollm2] [--rows 1,8,32] [--context 192] [any engine flag]

Prints milliseconds (median of the steps) and, beside the forward pass, the roofline: the time that reading every weight
once takes at the machine's measured memory bandwidth.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import torch

from launch import make_config
from model_runner.runner import ModelRunner
from protocol.ids import pack_ids
from protocol.plan import BatchPlan, PageDelta, RowStart
from protocol.sampling import SamplingParameters
from runtime.arguments import parse_arguments
from runtime.environment import read_environment
from runtime.version import VERSION

PAGE = 16


class Clock:
    """Milliseconds spent in each named part, one entry per step."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {}

    def timed(self, name: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        self.parts.setdefault(name, []).append((time.perf_counter() - began) * 1e3)

    def medians(self) -> str:
        medians = {name: statistics.median(values) for name, values in self.parts.items()}
        total = sum(medians.values())
        return "  ".join(f"{name} {value:7.2f}" for name, value in medians.items()) + f"  total {total:7.2f} ms"


def plan_of(step: int, rows: int, new_tokens: int, context: int, starts: list[RowStart]) -> BatchPlan:
    """Each row feeds `new_tokens` ids behind `context` cached ones, in pages of its own."""
    pages = -(-(context + new_tokens) // PAGE)
    deltas = [PageDelta(row, 0, pack_ids(range(1 + row * pages, 1 + (row + 1) * pages))) for row in range(rows)]
    return BatchPlan(
        step=step,
        slots=pack_ids(range(rows)),
        new_tokens=pack_ids([new_tokens] * rows),
        context=pack_ids([context] * rows),
        draws=pack_ids([1] * rows),
        ids=pack_ids((17 * i) % 1000 + 100 for i in range(rows * new_tokens)),
        starts=starts,
        page_deltas=deltas,
    )


def profile(
    runner: ModelRunner, rows: int, new_tokens: int, context: int, sampling: SamplingParameters, steps: int
) -> str:
    starts = [RowStart(row, sampling, row, b"") for row in range(rows)]
    clock = Clock()
    for step in range(steps + 2):
        plan = plan_of(step, rows, new_tokens, context, starts if step == 0 else [])
        if step == 2:
            clock = Clock()  # the first steps fill caches and are not counted
        clock.timed("forward", lambda plan=plan: runner.launch(plan))  # type: ignore[misc]
        clock.timed("head and draw", lambda: runner.sample(None))
        clock.timed("collect", runner.collect)
    return clock.medians()


def read_bandwidth() -> float:
    """Bytes per second that all threads together read from memory."""
    block = torch.ones(64 << 20, dtype=torch.float32)
    best = min(_seconds(block.sum) for _ in range(5))
    return block.nbytes / best


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--context", type=int, default=192)
    parser.add_argument("--prompts", default="512,1500")
    parser.add_argument("--steps", type=int, default=30)
    own, engine_flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(parse_arguments(engine_flags, VERSION), read_environment(), Path(folder))
    began = time.perf_counter()
    runner = ModelRunner(config)
    weight_bytes = runner.capacity.weight_bytes
    floor_ms = weight_bytes / read_bandwidth() * 1e3
    print(
        f"{config.attention_backend}, {config.quantization}, {config.threads} threads: loaded in {time.perf_counter() - began:.1f} s"
    )
    print(f"weights {weight_bytes / 1e6:.0f} MB, read once in {floor_ms:.2f} ms")
    greedy, nucleus = SamplingParameters(temperature=0.0), SamplingParameters(temperature=0.8, top_p=0.9)
    for rows in map(int, own.rows.split(",")):
        print(f"decode {rows:3} rows, greedy:  {profile(runner, rows, 1, own.context, greedy, own.steps)}")
        print(f"decode {rows:3} rows, nucleus: {profile(runner, rows, 1, own.context, nucleus, own.steps)}")
    for tokens in map(int, own.prompts.split(",")):
        print(f"prompt of {tokens} tokens:      {profile(runner, 1, tokens, 0, greedy, 3)}")


if __name__ == "__main__":
    numpy.seterr(all="raise")
    main()
