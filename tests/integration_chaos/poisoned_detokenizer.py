"""The detokenizer's process with a detokenizer that ends it without a word when it gets the poison's token."""

import os
import signal
import sys

from detokenizer import process
from detokenizer.detokenizer import Detokenizer
from protocol.ids import unpack_ids
from protocol.outputs import SequenceOutput
from runtime.process import run_process
from tests.integration_chaos.poisoned_scheduler import POISON_ID


class PoisonedDetokenizer(Detokenizer):
    """Everything is the real one's, save the deaths."""

    def add(self, output: SequenceOutput) -> None:
        if POISON_ID in unpack_ids(output.ids):
            os.kill(os.getpid(), signal.SIGKILL)
        super().add(output)


if __name__ == "__main__":
    vars(process)["Detokenizer"] = PoisonedDetokenizer
    sys.exit(run_process(process.main))
