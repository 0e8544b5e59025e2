"""The compile worker as a fork of the scheduler, before that has threads, sockets or weights: torch and the grammar
library, which both of them need, are loaded once and are in memory once."""

import faulthandler
import gc
import importlib
import os
import signal
import sys

import setproctitle

from runtime.process import die_with_parent
from scheduler.grammar.compile_messages import WorkerStart
from scheduler.grammar.compile_process import CompileProcess


def fork_worker(start: WorkerStart) -> CompileProcess:
    """To be called by a process with one thread."""
    input_read, input_write = os.pipe()
    output_read, output_write = os.pipe()
    sys.stdout.flush()  # or the fork would write it, too
    parent = os.getpid()
    process_id = os.fork()
    if process_id == 0:
        try:
            _work(parent, input_read, output_write)
        finally:
            os._exit(0)
    os.close(input_read)
    os.close(output_write)

    def end() -> None:
        os.kill(process_id, signal.SIGKILL)
        os.waitpid(process_id, 0)

    forked = CompileProcess(process_id, os.fdopen(input_write, "wb"), os.fdopen(output_read, "rb"), end)
    forked.begin(start)
    return forked


def _work(parent: int, input_read: int, output_write: int) -> None:
    """In the fork: nothing that is the scheduler's stays open, or it would outlive the scheduler's own ends of it."""
    die_with_parent(parent)
    faulthandler.disable()
    setproctitle.setproctitle(f"{setproctitle.getproctitle()}, grammars")
    os.dup2(input_read, 0)
    os.dup2(output_write, 1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    worker = importlib.import_module("scheduler.grammar.compile_worker")
    gc.enable()  # the scheduler forked with its own switched off
    worker.main()
