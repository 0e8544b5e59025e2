"""Faults for chaos runs: processes of a running server are killed, and it is timed until others stand in their place."""

import asyncio
import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from runtime.status_board import ProcessStatus, StatusBoard

POLL_S = 0.01


@dataclass
class Fault:
    """One kill. `recovered_s` is how long it took until the process (with its whole replica) was ready again."""

    role: str
    index: int
    at_s: float
    recovered_s: float | None = None


class Faults:
    """Kills what the status board names. `roles` limits what is killed; the supervisor never is."""

    def __init__(self, run_dir: Path, seed: int, roles: tuple[str, ...] = ()) -> None:
        self.faults: list[Fault] = []
        self._board = StatusBoard.open(run_dir / "board")
        self._random = random.Random(seed)
        self._roles = roles

    def living(self) -> list[ProcessStatus]:
        """Whom a kill can hit now."""
        return [
            status
            for status in self._board.read_all()
            if status.role != "supervisor" and status.pid and (not self._roles or status.role in self._roles)
        ]

    def all_ready(self) -> bool:
        return all(status.state == "ready" for status in self._board.read_all())

    async def go_on(self, until_s: float, pauses_s: tuple[float, float], patience_s: float) -> None:
        """One kill after another. Most wait until the server is whole again; every fifth hits it while it recovers, and
        every tenth takes two at once."""
        while time.monotonic() < until_s:
            await asyncio.sleep(self._random.uniform(*pauses_s))
            count = 2 if self._random.random() < 0.1 else 1
            kills = [self.kill(status) for status in self._choose(count)]
            if self._random.random() < 0.2:
                await asyncio.sleep(self._random.uniform(0.05, 1.0))
                kills += [self.kill(status) for status in self._choose(1)]
            await asyncio.gather(*(self.recovery(fault, incarnation, patience_s) for fault, incarnation in kills))

    def kill(self, status: ProcessStatus) -> tuple[Fault, int]:
        fault = Fault(status.role, status.index, time.monotonic())
        self.faults.append(fault)
        with contextlib.suppress(ProcessLookupError):
            os.kill(status.pid, signal.SIGKILL)
        return fault, status.incarnation

    async def recovery(self, fault: Fault, incarnation: int, patience_s: float) -> None:
        """Waits until a later incarnation is ready, and everybody else is."""
        while time.monotonic() - fault.at_s < patience_s:
            for status in self._board.read_all():
                is_successor = (status.role, status.index) == (fault.role, fault.index)
                if is_successor and status.incarnation > incarnation and self.all_ready():
                    fault.recovered_s = time.monotonic() - fault.at_s
                    return
            await asyncio.sleep(POLL_S)

    def close(self) -> None:
        self._board.close()

    def _choose(self, count: int) -> list[ProcessStatus]:
        """Roles are equally likely, however many processes each has."""
        by_role: dict[str, list[ProcessStatus]] = {}
        for status in self.living():
            by_role.setdefault(status.role, []).append(status)
        roles = self._random.sample(sorted(by_role), min(count, len(by_role)))
        return [self._random.choice(by_role[role]) for role in roles]
