"""The compile worker as a process: started early, for it loads for longer than the model's weights do."""

import contextlib
import subprocess
import sys

from runtime.engine_config import EngineConfig
from runtime.environment import child_environment
from scheduler.grammar.compile_messages import WorkerStart, write_frame

_MAX_THREADS = 4


def worker_start(config: EngineConfig) -> WorkerStart:
    """What a worker has to know of the server."""
    model = config.model
    parallel = max(1, min(_MAX_THREADS, config.threads))
    timeout_s = config.args.grammar_compile_timeout_s
    return WorkerStart(model.tokenizer_file, model.vocab_size, model.eos_token_ids, timeout_s, parallel)


class CompileProcess:
    """Its standard input and output are the link. Imports none of what the worker itself loads."""

    def __init__(self, start: WorkerStart) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scheduler.grammar.compile_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(OMP_NUM_THREADS="1"),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.input, self.output = self._process.stdin, self._process.stdout
        with contextlib.suppress(BrokenPipeError):  # whoever reads its output sees that it is dead
            write_frame(self.input, start)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close_streams(self) -> None:
        """Once nobody reads or writes them."""
        for stream in (self.input, self.output):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
