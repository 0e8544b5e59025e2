"""The process of a tensor-parallel rank other than 0: executes the plans that rank 0 passes on, and decides nothing."""

import gc
import os
import sys

from model_runner.parallel.membership import join_replica
from model_runner.runner import ModelRunner
from protocol.control import Progress, Ready, Shutdown
from protocol.plan import BatchPlan
from runtime.channels import Links
from runtime.engine_config import EngineConfig, ProcessSpec
from runtime.process import joined, peer_of, run_process
from runtime.status_board import SlotWriter

LONGEST_NAP_S = 1.0


class FollowingLoop:
    """Launches and samples each plan as it comes. Results are dropped: rank 0 reports them."""

    def __init__(self, runner: ModelRunner, links: Links, slot: SlotWriter, lookahead: int) -> None:
        self._runner = runner
        self._links = links
        self._slot = slot
        self._lookahead = lookahead
        self._uncollected = 0
        self._steps = 0

    def run(self) -> None:
        """Until the supervisor or rank 0 says Shutdown."""
        while self._turn():
            self._links.wait(LONGEST_NAP_S)

    def _turn(self) -> bool:
        """Everything that has come; False at the end."""
        self._slot.beat()
        if any(isinstance(message, Shutdown) for message in self._links.control.drain()):
            return False
        for message in self._links.inbox.drain():
            if isinstance(message, Shutdown):
                return False
            if isinstance(message, BatchPlan):
                self._execute(message)
        return True

    def _execute(self, plan: BatchPlan) -> None:
        self._runner.launch(plan)
        self._runner.sample(None)
        self._uncollected += 1
        while self._uncollected > self._lookahead:
            self._runner.collect()
            self._uncollected -= 1
        self._steps += 1
        self._slot.update(steps=self._steps)


def main(config: EngineConfig, spec: ProcessSpec) -> int:
    with joined(spec) as (links, board):
        slot = board.slot(spec.board_slot)

        def on_progress(what: str, done: int, total: int) -> None:
            slot.beat()
            links.report(Progress(peer_of(spec), what, done, total))

        group, _ = join_replica(config, spec, links.inbox.endpoint)
        runner = ModelRunner(config, on_progress, group=group)
        gc.collect()
        gc.freeze()
        slot.update(state="ready")
        links.report(Ready(peer_of(spec), os.getpid(), {"weight_bytes": runner.capacity.weight_bytes}))
        FollowingLoop(runner, links, slot, config.lookahead).run()
    return 0


if __name__ == "__main__":
    sys.exit(run_process(main))
