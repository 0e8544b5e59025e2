"""The compile worker as its owner sees it: a process, and the two ends of its link."""

import contextlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

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


@dataclass(frozen=True)
class CompileProcess:
    """`end` kills the process and waits for it."""

    pid: int
    input: IO[bytes]
    output: IO[bytes]
    end: Callable[[], None]

    def begin(self, start: WorkerStart) -> None:
        """The first message. Should the worker be dead already, whoever reads from it will see that."""
        with contextlib.suppress(BrokenPipeError):
            write_frame(self.input, start)

    def close_streams(self) -> None:
        """Once nobody reads or writes them."""
        for stream in (self.input, self.output):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def spawn_worker(start: WorkerStart) -> CompileProcess:
    """A new process, which has to load everything itself: for a server that runs, and may not be forked any more."""
    process = subprocess.Popen(
        [sys.executable, "-m", "scheduler.grammar.compile_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(OMP_NUM_THREADS="1"),
    )

    def end() -> None:
        process.kill()
        process.wait()

    assert process.stdin is not None and process.stdout is not None
    spawned = CompileProcess(process.pid, process.stdin, process.stdout, end)
    spawned.begin(start)
    return spawned
