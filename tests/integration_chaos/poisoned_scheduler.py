"""The scheduler's process with an executor that ends it without a word when it has to compute the poison's token."""

import os
import signal
import sys
from typing import Any

from protocol.ids import unpack_ids
from protocol.plan import BatchPlan
from runtime.process import run_process
from scheduler import executor, process

POISON_ID = 17


class PoisonedExecutor:
    """Everything is the real executor's, save the deaths."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def launch(self, plan: BatchPlan) -> None:
        if POISON_ID in unpack_ids(plan.ids):
            os.kill(os.getpid(), signal.SIGKILL)
        self._real.launch(plan)


def build(*arguments: Any) -> PoisonedExecutor:
    return PoisonedExecutor(executor.build_executor(*arguments))


if __name__ == "__main__":
    vars(process)["build_executor"] = build
    sys.exit(run_process(process.main))
