"""The scheduler's side of the compile worker: jobs go out, compiled grammars come back, a dead worker is replaced."""

import queue
import threading
from collections import deque

import msgspec
import xgrammar

from protocol.sampling import GrammarSpec
from scheduler.grammar.compile_messages import (
    CancelJob,
    CompileJob,
    CompileOutcome,
    FromWorker,
    WorkerReady,
    WorkerStart,
    read_frame,
    write_frame,
)
from scheduler.grammar.compile_process import CompileProcess, spawn_worker

_TRIES = 2


Outcome = tuple[CompileOutcome, xgrammar.CompiledGrammar | None]


class GrammarCompiler:
    """Never blocks its caller: one thread writes to the worker, one reads from it and loads what it has compiled.

    `process` is a worker that was started already.
    """

    def __init__(self, start: WorkerStart, info: xgrammar.TokenizerInfo, process: CompileProcess | None = None) -> None:
        self.restarts = 0
        self._outcomes: deque[Outcome] = deque()
        self._start = start
        self._info = info
        self._pending: dict[int, tuple[CompileJob, int]] = {}  # with the tries so far
        self._worker = _Worker(process or spawn_worker(start), info, self._outcomes)

    def wait_ready(self, timeout_s: float) -> bool:
        """Until the worker has loaded everything; False if it died, or takes longer."""
        return self._worker.loaded.wait(timeout_s) and not self._worker.dead.is_set()

    def submit(self, id: int, spec: GrammarSpec) -> None:
        job = CompileJob(id, spec)
        self._pending[id] = (job, 1)
        self._worker.send(job)

    def cancel(self, id: int) -> None:
        if self._pending.pop(id, None) is not None:
            self._worker.send(CancelJob(id))

    def take(self) -> list[Outcome]:
        """Outcomes since the last call; also the place where a dead worker is noticed."""
        taken = []
        while self._outcomes:
            outcome = self._outcomes.popleft()
            if self._pending.pop(outcome[0].id, None) is not None:
                taken.append(outcome)
        if self._worker.dead.is_set():
            taken += self._restart()
        return taken

    def close(self) -> None:
        self._worker.close()

    def _restart(self) -> list[Outcome]:
        self._worker.close()
        self._worker = _Worker(spawn_worker(self._start), self._info, self._outcomes)
        self.restarts += 1
        failed: list[Outcome] = []
        for id, (job, tries) in list(self._pending.items()):
            if tries >= _TRIES:
                del self._pending[id]
                error = "the grammar compiler broke down"
                failed.append((CompileOutcome(id, error=error, code="compiler_failed", lasting=False), None))
            else:
                self._pending[id] = (job, tries + 1)
                self._worker.send(job)
        return failed


class _Worker:
    """One worker process with its two threads. `loaded` is set, too, when it dies before it is."""

    def __init__(self, process: CompileProcess, info: xgrammar.TokenizerInfo, outcomes: deque[Outcome]) -> None:
        self._process = process
        self.loaded = threading.Event()
        self.dead = threading.Event()
        self._info = info
        self._outcomes = outcomes
        self._queue: queue.SimpleQueue[msgspec.Struct | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def send(self, message: msgspec.Struct) -> None:
        self._queue.put(message)

    def close(self) -> None:
        """Ends the process and its threads."""
        self._queue.put(None)
        self._process.end()
        for thread in self._threads:
            thread.join()
        self._process.close_streams()

    def _write(self) -> None:
        while (message := self._queue.get()) is not None:
            try:
                write_frame(self._process.input, message)
            except BrokenPipeError:
                return

    def _read(self) -> None:
        try:
            while (outcome := read_frame(self._process.output, FromWorker)) is not None:
                if isinstance(outcome, WorkerReady):
                    self.loaded.set()
                    continue
                compiled = None
                if not outcome.error:
                    compiled = xgrammar.CompiledGrammar.deserialize_json(outcome.compiled.decode(), self._info)
                self._outcomes.append((outcome, compiled))
        finally:  # what can't be read counts as a death, too: nobody may wait for this thread for ever
            self.dead.set()
            self.loaded.set()
