"""Replicas of several ranks: rank 0 in this process, the others as the processes that a server starts."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch.distributed as dist
import zmq

from model_runner.parallel.start import start_executor
from protocol.links import SupervisorInbox
from protocol.plan import Executor
from runtime.channels import Inbox, Outbox
from runtime.engine_config import EngineConfig, ProcessSpec
from runtime.model_description import describe_model
from runtime.process import write_start_file
from runtime.server_args import ServerArgs
from runtime.status_board import StatusBoard
from runtime.topology import make_spec, seats_of
from tests.model_runner.conftest import make_config

ROOT = Path(__file__).parents[2]


class Replica:
    """Ranks 1 and on are children; `executor` is rank 0's, and what a scheduler would drive."""

    def __init__(self, config: EngineConfig, folder: Path) -> None:
        self.config = msgspec.structs.replace(config, run_dir=str(folder))
        self.context: zmq.Context[Any] = zmq.Context()
        self.supervisor = Inbox(self.context, f"ipc://{folder}/supervisor.in", SupervisorInbox)
        seats = seats_of(self.config)
        StatusBoard.create(folder / "board", 1 + max(seat.board_slot for seat in seats)).close()
        self.workers: list[subprocess.Popen[bytes]] = []
        for seat in seats:
            spec = make_spec(seat, 1, folder, -1)
            if seat.role == "scheduler":
                self.spec: ProcessSpec = spec
            elif seat.role == "rank":
                start_file = folder / f"start-{seat.index}"
                write_start_file(start_file, self.config, spec)
                self.workers.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "model_runner.worker", str(start_file)],
                        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                    )
                )
        self.outbox = Outbox(self.context)
        self.executor: Executor = start_executor(self.config, self.spec, self.outbox, lambda what, done, total: None)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        if dist.is_initialized():
            dist.destroy_process_group()
        self.outbox.close()
        self.supervisor.close()
        self.context.destroy(linger=0)


@pytest.fixture(scope="module")
def tiny_config(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., EngineConfig]:
    """A configuration of the tiny Llama, from the flags that differ."""
    description = describe_model(ServerArgs(), tiny_llama_dir, tmp_path_factory.mktemp("cache"))

    def make(**flags: Any) -> EngineConfig:
        return make_config(args=ServerArgs(**flags), model=description)

    return make


@pytest.fixture(scope="module")
def replica() -> Iterator[Callable[[EngineConfig], Replica]]:
    """Starts one replica at a time: a process has one group. Ends when the module does."""
    started: list[tuple[Replica, Path]] = []

    def end() -> None:
        while started:
            running, folder = started.pop()
            running.close()
            shutil.rmtree(folder)

    def start(config: EngineConfig) -> Replica:
        end()
        folder = Path(tempfile.mkdtemp(prefix="c"))  # tmp_path is too long for a unix socket
        started.append((Replica(config, folder), folder))
        return started[-1][0]

    yield start
    end()
