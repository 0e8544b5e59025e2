"""The compile worker's loop and its reader on the scheduler's side, where what the other end does comes at a bad moment."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from selectors import SelectorKey

import pytest

from protocol.sampling import GrammarSpec
from runtime.vocabulary import Vocabulary
from scheduler.grammar import compile_worker
from scheduler.grammar.compile_messages import CancelJob, CompileJob, CompileOutcome, WorkerStart, write_frame
from scheduler.grammar.compile_process import CompileProcess
from scheduler.grammar.compile_worker import CompileWorker, Trial
from scheduler.grammar.compiler import GrammarCompiler
from scheduler.grammar.tokens import tokenizer_info


class ScriptedSelector:
    """Says what the script says, one list of descriptors after another."""

    def __init__(self, script: list[list[int]]) -> None:
        self._script = iter(script)

    def register(self, descriptor: int, events: int) -> None: ...

    def unregister(self, descriptor: int) -> None: ...

    def select(self, timeout_s: float | None) -> Iterator[tuple[SelectorKey, int]]:
        return ((SelectorKey(descriptor, descriptor, 1, None), 1) for descriptor in next(self._script))


def start_of(tokenizer_file: Path, vocabulary: Vocabulary) -> WorkerStart:
    return WorkerStart(str(tokenizer_file), vocabulary.size, (2,), 30.0, 2)


def test_a_trial_that_speaks_while_its_job_is_cancelled(
    tokenizer_file: Path, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = CompileWorker(start_of(tokenizer_file, vocabulary))
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    reading, writing = os.pipe()
    worker._trials[reading] = Trial(CompileJob(7, GrammarSpec("regex", "a")), sleeper.pid, reading, float("inf"))
    worker._selector = ScriptedSelector([[0, reading], [0]])  # type: ignore[assignment]
    messages = io.BytesIO()
    write_frame(messages, CancelJob(7))
    messages.seek(0)
    monkeypatch.setattr(compile_worker, "_Input", lambda: messages)
    worker.run()
    assert not worker._trials
    os.close(writing)
    sleeper.communicate()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_whose_answer_can_not_be_read_counts_as_dead(tokenizer_file: Path, vocabulary: Vocabulary) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert sleeper.stdin is not None
    output_read, output_write = os.pipe()

    def end() -> None:
        sleeper.send_signal(signal.SIGKILL)
        sleeper.communicate()

    process = CompileProcess(sleeper.pid, sleeper.stdin, os.fdopen(output_read, "rb"), end)
    start = start_of(tokenizer_file, vocabulary)
    compiler = GrammarCompiler(start, tokenizer_info(vocabulary, vocabulary.size, (2,)), process)
    with os.fdopen(output_write, "wb") as output:
        write_frame(output, CompileOutcome(1, compiled=b"no grammar"))
        assert compiler._worker.dead.wait(60)
        compiler.close()
