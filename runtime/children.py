"""One child process of the supervisor: how it is started, what it has said, how it is ended."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.control import Peer
from runtime.engine_config import EngineConfig, ProcessSpec
from runtime.environment import child_environment
from runtime.process import stack_file, write_start_file
from runtime.status_board import StatusBoard
from runtime.topology import Seat, make_spec, thread_environment


@dataclass
class Child:
    """One incarnation on a seat. `failure` is the sentence it gave before it ended, or why the supervisor ended it."""

    seat: Seat
    spec: ProcessSpec
    process: subprocess.Popen[bytes]
    progressed_s: float = field(default_factory=time.monotonic)
    ready: bool = False
    drained: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    kill_at_s: float | None = None

    @property
    def peer(self) -> Peer:
        """As its peers know it."""
        return Peer(self.spec.role, self.spec.index, self.spec.incarnation, self.spec.endpoint)

    @property
    def control_peer(self) -> Peer:
        """As the supervisor's link to it knows it."""
        return Peer(self.spec.role, self.spec.index, self.spec.incarnation, self.spec.control_endpoint)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def ended(self) -> bool:
        return self.process.poll() is not None

    def how_it_ended(self) -> str:
        """For people: the sentence it left, or what its exit status says."""
        if self.failure is not None:
            return self.failure
        status = self.process.returncode
        if status is not None and status < 0:
            name = signal.Signals(-status).name
            hint = " (the kernel does this when memory runs out)" if name == "SIGKILL" else ""
            return f"{self.seat.name} was ended by {name}{hint}"
        return f"{self.seat.name} ended with status {status}"

    def remove_sockets(self) -> None:
        """ZeroMQ removes its socket files on a clean end only."""
        for endpoint in (self.spec.endpoint, self.spec.control_endpoint):
            Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)

    def stacks(self, run_dir: str) -> str:
        """What faulthandler wrote when the process died, "" if nothing."""
        try:
            return stack_file(run_dir, self.spec).read_text(errors="replace").strip()
        except OSError:
            return ""


def start_child(
    config: EngineConfig, seat: Seat, incarnation: int, module: str, board: StatusBoard, listen_fd: int
) -> Child:
    """Starts `python -m MODULE START_FILE` in a process group of its own, so that a terminal's Ctrl-C reaches the
    supervisor alone."""
    run_dir = Path(config.run_dir)
    spec = make_spec(seat, incarnation, run_dir, listen_fd, config.args.dist_init_addr)
    start_file = run_dir / f"start-{seat.role}-{seat.index}-{incarnation}"
    write_start_file(start_file, config, spec)
    board.slot(seat.board_slot).claim(seat.role, seat.index, incarnation, 0)
    threads = thread_environment(seat.role, config.threads)
    environment = child_environment(CANDOR_SUPERVISOR_PID=str(os.getpid()), **threads)
    process = subprocess.Popen(
        # -P: the current directory must not shadow our packages.
        [sys.executable, "-P", "-m", module, str(start_file)],
        stdin=subprocess.DEVNULL,
        env=environment,
        pass_fds=() if spec.listen_fd is None else (spec.listen_fd,),
        process_group=0,
    )
    return Child(seat, spec, process)
