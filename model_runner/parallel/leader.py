"""Rank 0: passes every plan on to the other ranks, then runs it."""

import time
from collections.abc import Callable

from model_runner.runner import ModelRunner
from protocol.control import Shutdown
from protocol.links import encode
from protocol.plan import BatchPlan, GrammarMasks, StepResult


class LeadingExecutor:
    """`protocol.plan.Executor` of several ranks. `send_to_all` hands an encoded message to each other rank.

    The others get plans alone: they launch and sample each one in turn, and learn what was drawn from rank 0's
    broadcast, so that grammar masks, penalties and seeds need exist on rank 0 only.
    """

    def __init__(self, runner: ModelRunner, send_to_all: Callable[[bytes], None]) -> None:
        self.capacity = runner.capacity
        self._runner = runner
        self._send_to_all = send_to_all
        self._plan_bytes = 0
        self._plan_ns = 0

    def launch(self, plan: BatchPlan) -> None:
        began_ns = time.perf_counter_ns()
        frame = encode(plan)
        self._send_to_all(frame)
        self._plan_ns += time.perf_counter_ns() - began_ns
        self._plan_bytes += len(frame)
        self._runner.launch(plan)

    def sample(self, masks: GrammarMasks | None) -> None:
        self._runner.sample(masks)

    def collect(self) -> StepResult:
        return self._runner.collect()

    def statistics(self) -> dict[str, float]:
        """The runner's, and what passing plans on has cost so far."""
        return self._runner.statistics() | {
            "plan_bytes": self._plan_bytes,
            "plan_seconds": self._plan_ns / 1e9,
        }

    def close(self) -> None:
        self._send_to_all(encode(Shutdown()))
        self._runner.close()
