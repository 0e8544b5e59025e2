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
from scheduler.grammar.interface import GrammarBackend

OnProgress = Callable[[str, int, int], None]


def build_executor(config: EngineConfig, spec: ProcessSpec, outbox: Outbox, on_progress: OnProgress) -> Executor:
    """The executor of this replica, with its weights loaded; plans for its other ranks leave by `outbox`.
    `on_progress(what, done, total)` is called meanwhile."""
    start = importlib.import_module("model_runner.parallel.start")
    executor: Executor = start.start_executor(config, spec, outbox, on_progress)
    return executor


def start_grammar_backend(config: EngineConfig) -> "Future[GrammarBackend]":
    """Builds the grammar backend in a thread: its library takes a second to load, and most servers need it rarely."""
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar-start")
    future = pool.submit(_build_grammar_backend, config)
    pool.shutdown(wait=False)
    return future


def _build_grammar_backend(config: EngineConfig) -> GrammarBackend:
    backend: GrammarBackend = importlib.import_module("scheduler.grammar.backend").XGrammarBackend(config)
    return backend
