"""Builds what only this process holds: the executor, which loads torch and the weights, and the grammar backend.

Both are named by module here and imported when they are built, so that everything else in this room stays importable
(and testable in milliseconds) without torch.
"""

import importlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from protocol.plan import Executor
from runtime.channels import Outbox
from runtime.engine_config import EngineConfig, ProcessSpec
from scheduler.grammar.compile_fork import fork_worker
from scheduler.grammar.compile_process import CompileProcess, worker_start
from scheduler.grammar.interface import GrammarBackend
from scheduler.grammar.library import load_library

LONGEST_WAIT_S = 30.0

OnProgress = Callable[[str, int, int], None]


def build_executor(config: EngineConfig, spec: ProcessSpec, outbox: Outbox, on_progress: OnProgress) -> Executor:
    """The executor of this replica, with its weights loaded; plans for its other ranks leave by `outbox`.
    `on_progress(what, done, total)` is called meanwhile."""
    start = importlib.import_module("model_runner.parallel.start")
    executor: Executor = start.start_executor(config, spec, outbox, on_progress)
    return executor


class GrammarStart:
    """The grammar backend on its way. Its library, its vocabulary and its compile worker take most of a second: the first
    request with a grammar should not wait for that, so a server's first start does it before and beside the weights."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._process: CompileProcess | None = None
        self._begun: Future[GrammarBackend] | None = None

    def fork_worker(self) -> None:
        """Forks the worker off while this process has one thread, and what both need (torch and the grammar library) but
        nothing else."""
        importlib.import_module("torch")
        self._load_transformers()
        load_library()
        self._process = fork_worker(worker_start(self._config))

    def begin(self) -> None:
        """Builds the backend in a thread."""
        self._load_transformers()
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar-start")
        self._begun = pool.submit(self._build)
        pool.shutdown(wait=False)

    def _load_transformers(self) -> None:
        """For a model on its code, before there are two threads: the grammar library must not load without it meanwhile,
        and it puts another module in its place at the end of its own import: who asks for it before keeps the half that
        is thrown away."""
        if self._config.model_impl == "transformers":
            importlib.import_module("transformers")

    def take(self) -> "Future[GrammarBackend]":
        """What was begun; begins again if that has been taken."""
        if self._begun is None:
            self.begin()
        begun, self._begun = self._begun, None
        assert begun is not None
        return begun

    def _build(self) -> GrammarBackend:
        process, self._process = self._process, None
        load_library()
        backend = importlib.import_module("scheduler.grammar.backend").XGrammarBackend(self._config, process)
        backend.wait_ready(LONGEST_WAIT_S)
        built: GrammarBackend = backend
        return built
