"""How a process begins and ends: what every `process.py` runs before and after its own main function."""

import asyncio
import contextlib
import ctypes
import faulthandler
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import setproctitle
import uvloop

from protocol.control import Failed, Peer
from runtime.channels import Links, report_once
from runtime.engine_config import EngineConfig, ProcessSpec
from runtime.environment import read_environment
from runtime.logging_setup import set_up_logging
from runtime.start_error import StartError
from runtime.status_board import StatusBoard

_PR_SET_PDEATHSIG = 1

ProcessMain = Callable[[EngineConfig, ProcessSpec], int]

logger = logging.getLogger(__name__)


class StartFile(msgspec.Struct, frozen=True):
    """What the supervisor writes for a process, as MessagePack, in the private run directory."""

    config: EngineConfig
    spec: ProcessSpec


def process_name(spec: ProcessSpec) -> str:
    """As in process titles and logs: `scheduler 0`."""
    return f"{spec.role} {spec.index}"


def stack_file(run_dir: str, spec: ProcessSpec) -> Path:
    """Where faulthandler writes the stacks of a process that dies by a fault or is found stuck."""
    return Path(run_dir) / f"stacks-{spec.role}-{spec.index}-{spec.incarnation}.txt"


def peer_of(spec: ProcessSpec) -> Peer:
    """The process as others know it."""
    return Peer(spec.role, spec.index, spec.incarnation, spec.endpoint)


def write_start_file(path: Path, config: EngineConfig, spec: ProcessSpec) -> None:
    path.write_bytes(msgspec.msgpack.encode(StartFile(config, spec)))


def run_process(main: ProcessMain) -> int:
    """Reads the start file named by argv[1], sets the process up, runs `main` and ends with its status.

    A StartError (or any other exception) becomes one `Failed` to the supervisor and status 1. SIGINT and SIGTERM are
    ignored: a terminal or a service manager sends them to all processes at once, but the supervisor alone decides.

    Does not return: tearing an interpreter with torch and thread pools down takes seconds, may hang, and saves nothing.
    """
    start = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=StartFile)
    config, spec = start.config, start.spec
    die_with_parent(read_environment().supervisor_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    setproctitle.setproctitle(f"candor: {process_name(spec)}")
    set_up_logging(process_name(spec), config.args.log_level)
    raise_file_limit()
    with stack_file(config.run_dir, spec).open("w") as stacks:
        faulthandler.enable(stacks, all_threads=True)
        status = _guarded(main, config, spec)
        faulthandler.disable()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _guarded(main: ProcessMain, config: EngineConfig, spec: ProcessSpec) -> int:
    """The status of `main`, or 1 with the reason told to the supervisor."""
    try:
        board = StatusBoard.open(spec.board_path)
        board.slot(spec.board_slot).set_pid(os.getpid())
        board.close()
        return main(config, spec)
    except StartError as error:
        report_once(spec, Failed(peer_of(spec), str(error)))
    except Exception as error:
        logger.exception("this process ends: %s", error)
        report_once(spec, Failed(peer_of(spec), f"{process_name(spec)} failed: {type(error).__name__}: {error}"))
    return 1


@contextlib.contextmanager
def joined(spec: ProcessSpec) -> Iterator[tuple[Links, StatusBoard]]:
    """This process's links and the server's status board, closed at the end. What comes in and is no message is logged."""
    links = Links(spec, on_garbage=lambda reason: logger.error("a message that can't be read: %s", reason))
    board = StatusBoard.open(spec.board_path)
    try:
        yield links, board
    finally:
        links.close()
        board.close()


def run_async(main: Coroutine[Any, Any, int]) -> int:
    """Runs the coroutine on uvloop, for the processes that live in an event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def raise_file_limit() -> None:
    """As many descriptors as the system lets this user have: the usual soft limit of 1024 is also a limit on clients."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def die_with_parent(parent_pid: int | None) -> None:
    """Has the kernel kill this process when its parent ends, even by SIGKILL; ends now if the parent is gone already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)
