"""The compile worker: forks for every grammar, so that whatever one does (run for ever, eat memory, crash) ends with
the fork. The worker itself has xgrammar and the vocabulary loaded and no threads, so a fork costs milliseconds."""

import contextlib
import os
import resource
import selectors
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import xgrammar

from protocol.sampling import GrammarSpec
from runtime.process import die_with_parent
from runtime.vocabulary import Vocabulary
from scheduler.grammar.compile_messages import (
    CancelJob,
    CompileJob,
    CompileOutcome,
    ToWorker,
    WorkerReady,
    WorkerStart,
    read_frame,
    write_frame,
)
from scheduler.grammar.schema.errors import GrammarRefused
from scheduler.grammar.source import TokenId, grammar_source
from scheduler.grammar.tokens import tokenizer_info

MEMORY_BYTES = 2 << 30
"""What one compilation may take beyond the worker's own size."""

_NICENESS = 5
_PIPE_BYTES = 1 << 16


@dataclass
class Trial:
    """One fork at work."""

    job: CompileJob
    process_id: int
    pipe: int
    deadline: float
    received: bytearray = field(default_factory=bytearray)


class CompileWorker:
    """Starts trials, reads what they write, kills those over their time."""

    def __init__(self, start: WorkerStart) -> None:
        self._vocabulary = Vocabulary.load(start.tokenizer_file)
        self._info = tokenizer_info(self._vocabulary, start.vocab_size, start.eos_token_ids)
        self._start = start
        self._waiting: deque[CompileJob] = deque()
        self._trials: dict[int, Trial] = {}  # by pipe
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Until the scheduler closes the input."""
        self._selector.register(0, selectors.EVENT_READ)
        write_frame(sys.stdout.buffer, WorkerReady())
        while True:
            for key, _ in self._selector.select(self._patience_s()):
                if key.fd != 0:
                    trial = self._trials.get(key.fd)
                    if trial is not None:  # a job that was cancelled a moment ago has none any more
                        self._read(trial)
                    continue
                message = read_frame(_Input(), ToWorker)
                if message is None:
                    self._end()
                    return
                self._take(message)
            self._kill_overdue()
            while self._waiting and len(self._trials) < self._start.parallel:
                self._fork(self._waiting.popleft())

    def _take(self, message: ToWorker) -> None:
        if isinstance(message, CompileJob):
            self._waiting.append(message)
        elif isinstance(message, CancelJob):
            self._waiting = deque(job for job in self._waiting if job.id != message.id)
            for trial in [trial for trial in self._trials.values() if trial.job.id == message.id]:
                self._finish(trial)

    def _patience_s(self) -> float | None:
        if not self._trials:
            return None
        return max(0.0, min(trial.deadline for trial in self._trials.values()) - time.monotonic())

    def _fork(self, job: CompileJob) -> None:
        reading, writing = os.pipe()
        process_id = os.fork()
        if process_id == 0:
            try:
                _compile(job, self._info, self._vocabulary, writing)
            finally:
                os._exit(0)
        os.close(writing)
        trial = Trial(job, process_id, reading, time.monotonic() + self._start.timeout_s)
        self._trials[reading] = trial
        self._selector.register(reading, selectors.EVENT_READ)

    def _read(self, trial: Trial) -> None:
        data = os.read(trial.pipe, _PIPE_BYTES)
        if data:
            trial.received += data
            return
        self._finish(trial)
        try:
            outcome = msgspec.msgpack.decode(trial.received, type=CompileOutcome)
        except msgspec.DecodeError:
            error = "the grammar is too large or too deeply nested to be compiled"
            outcome = CompileOutcome(trial.job.id, error=error, code="grammar_too_complex")
        write_frame(sys.stdout.buffer, outcome)

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for trial in [trial for trial in self._trials.values() if trial.deadline <= now]:
            self._finish(trial)
            error = f"the grammar could not be compiled within {self._start.timeout_s:g} s"
            outcome = CompileOutcome(trial.job.id, error=error, code="grammar_too_complex", lasting=False)
            write_frame(sys.stdout.buffer, outcome)

    def _finish(self, trial: Trial) -> None:
        self._selector.unregister(trial.pipe)
        os.close(trial.pipe)
        del self._trials[trial.pipe]
        os.kill(trial.process_id, signal.SIGKILL)
        os.waitpid(trial.process_id, 0)

    def _end(self) -> None:
        for trial in list(self._trials.values()):
            self._finish(trial)


class _Input:
    """Standard input unbuffered (what a buffer holds, a selector does not see), in reads of exactly the size asked for."""

    def read(self, size: int, /) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            data = os.read(0, size - len(parts))
            if not data:
                break
            parts += data
        return bytes(parts)


def compile_grammar(spec: GrammarSpec, info: xgrammar.TokenizerInfo, token_id: TokenId) -> xgrammar.CompiledGrammar:
    """Raises GrammarRefused, or what xgrammar raises: RuntimeError and its kin."""
    source = grammar_source(spec, token_id)
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    match source.form:
        case "ebnf":
            return compiler.compile_grammar(source.text)
        case "lark":
            return compiler.compile_lark(source.text)
    return compiler.compile_structural_tag(source.text)


def _compile(job: CompileJob, info: xgrammar.TokenizerInfo, vocabulary: Vocabulary, pipe: int) -> None:
    """In the fork: writes a CompileOutcome to the pipe, or dies."""
    die_with_parent(None)
    os.nice(_NICENESS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, size + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # xgrammar prints what it warns of
    try:
        compiled = compile_grammar(job.spec, info, vocabulary.id_of)
        outcome = CompileOutcome(job.id, compiled=compiled.serialize_json().encode())
    except GrammarRefused as error:
        outcome = CompileOutcome(job.id, error=str(error), code="unsupported_grammar")
    except MemoryError:
        outcome = CompileOutcome(job.id, error="the grammar takes too much memory", code="grammar_too_complex")
    except Exception as error:  # xgrammar has no error class of its own
        outcome = CompileOutcome(job.id, error=f"the grammar is not valid: {_reason(error)}", code="invalid_grammar")
    with os.fdopen(pipe, "wb") as stream:
        stream.write(msgspec.msgpack.encode(outcome))


def _reason(error: Exception) -> str:
    """xgrammar's message without its time stamp and source line."""
    text = str(error).strip()
    if text.startswith("[") and ": " in text:
        text = text.split(": ", 1)[1]
    return text[:500]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start = read_frame(_Input(), WorkerStart)
    if start is not None:
        with contextlib.suppress(BrokenPipeError):  # the scheduler died meanwhile
            CompileWorker(start).run()


if __name__ == "__main__":
    main()
