"""Chaos: mixed load on a real server while its processes are killed, and an account of what became of every request.

    python -m benchmarks.chaos --minutes 10 [--model smollm2] [--concurrency 12] [--seed 1] [--json FILE] \\
        [-- --http-workers 2 --dp-size 2 ...]

Starts the server (further flags after `--`), asks every question of the undisturbed server first, then kills -9 a process
of a random role every few seconds, two at once or one that is recovering at times, while clients stream, wait, read
slowly, leave and abort. Each answer is compared with the undisturbed one. Exit status 1 unless: nothing hung, nothing was
wrong, errors and broken connections only where an HTTP worker was killed meanwhile, every page in its place at the end,
every killed process back.

Answers can only be compared where they do not depend on what else is in the batch: the default on CPU (int8), or
`-- --dtype float32 --quantization none --attention-backend torch`.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.chaos_faults import Fault, Faults
from benchmarks.chaos_load import Behaviour, Expected, Load, Record, make_questions
from benchmarks.chaos_storm import storm

ROOT = Path(__file__).parents[1]
BEHAVIOURS: tuple[Behaviour, ...] = ("stream", "stream", "whole", "slow", "leave", "abort")
START_S = 600.0
SETTLE_S = 90.0
# Restarts are what is measured here: they must neither run out nor be delayed by the ones before.
RESTART_FLAGS = ("--max-restarts", "1000000", "--restart-window-s", "0.2")


@dataclass
class Report:
    """The account. `violations` is empty if everything held."""

    seconds: float
    records: list[Record]
    faults: list[Fault]
    disconnects: int
    leaked: list[str] = field(default_factory=list)

    def excused(self, record: Record) -> bool:
        """True if an HTTP worker was killed while the request was there (or being accepted)."""
        deaths = (fault.at_s for fault in self.faults if fault.role == "http")
        return any(record.began_s - 0.5 <= at_s <= record.ended_s + 0.5 for at_s in deaths)

    def count(self, *outcomes: str, excused: bool | None = None) -> int:
        return sum(
            record.outcome in outcomes and (excused is None or self.excused(record) == excused)
            for record in self.records
        )

    @property
    def violations(self) -> list[str]:
        found = [f"{record.question} ({record.behaviour}) {record.outcome}: {record.detail}"
                 for record in self.records
                 if record.outcome in ("hung", "wrong")
                 or (record.outcome in ("error", "connection") and not self.excused(record))]  # fmt: skip
        found += [f"{fault.role} {fault.index} did not come back" for fault in self.faults if fault.recovered_s is None]
        return found + self.leaked

    def lines(self) -> list[str]:
        kills = Counter(fault.role for fault in self.faults)
        recoveries = [fault.recovered_s for fault in self.faults if fault.recovered_s is not None]
        pauses = [record.longest_pause_s for record in self.records if record.outcome == "whole"]
        rows: list[tuple[str, Any]] = [
            ("seconds", round(self.seconds)),
            ("kills", f"{len(self.faults)} ({', '.join(f'{role} {count}' for role, count in sorted(kills.items()))})"),
            ("requests sent", len(self.records)),
            ("connections cut at random moments", self.disconnects),
            ("answered whole, as undisturbed", self.count("whole")),
            ("left or aborted by the client", self.count("left")),
            ("failed: their HTTP worker was killed", self.count("error", "connection", excused=True)),
            ("failed otherwise", self.count("error", "connection", excused=False)),
            ("hung", self.count("hung")),
            ("wrong", self.count("wrong")),
            ("pages and rows leaked", "; ".join(self.leaked) or 0),
            ("recovery, median / max", _seconds(recoveries)),
            ("longest pause of a whole stream", _seconds(pauses, middle=False)),
        ]
        return [f"{name:<40}{value}" for name, value in rows]


def _seconds(values: list[float], middle: bool = True) -> str:
    if not values:
        return "none"
    return (f"{statistics.median(values):.2f} s / " if middle else "") + f"{max(values):.2f} s"


@dataclass(frozen=True)
class Plan:
    """What to do to a server. `pauses_s` is how long it is left alone between kills, from and to."""

    seconds: float
    concurrency: int = 12
    answer_tokens: int = 200
    seed: int = 1
    pauses_s: tuple[float, float] = (1.0, 5.0)
    hang_s: float = 180.0
    roles: tuple[str, ...] = ()
    disconnects: int = 1000


async def run(url: str, run_dir: Path, plan: Plan, expected: Expected | None = None) -> Report:
    """Load and faults on a server that is ready, and what was left when everybody had an answer. `expected` are the
    answers, if they are known already."""
    questions = make_questions(plan.answer_tokens)
    load = Load(url, questions, plan.seed, plan.hang_s, expected)
    faults = Faults(run_dir, plan.seed, plan.roles)
    try:
        if expected is None:
            await load.learn()
        began_s = time.monotonic()
        clients = [asyncio.create_task(load.client(BEHAVIOURS)) for _ in range(plan.concurrency)]
        await faults.go_on(began_s + plan.seconds, plan.pauses_s, plan.hang_s)
        load.stopping = True
        await asyncio.gather(*clients)
        seconds = time.monotonic() - began_s
        await storm(url, questions, plan.disconnects, plan.seed)
        return Report(seconds, load.records, faults.faults, plan.disconnects, await leaks(url))
    finally:
        await load.close()
        faults.close()


async def leaks(url: str) -> list[str]:
    """What is still held when nobody wants anything: pages, rows, requests; [] once nothing is."""
    until_s = time.monotonic() + SETTLE_S
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while True:
            state = (await client.get("/server_info", params={"check": "1"})).json()
            found = [f"silent: {name}" for name in state["silent"]]
            for replica in state["internal_states"]:
                if replica["check"] != "every page has one owner":
                    found.append(f"replica {replica['index']}: {replica['check']}")
                for name in ("running_choices", "waiting_choices", "waiting_requests"):
                    if replica[name]:
                        found.append(f"replica {replica['index']}: {replica[name]} {name}")
                lost = replica["total_pages"] - replica["free_pages"]
                if lost:
                    found.append(f"replica {replica['index']}: {lost} pages held")
            for process in state["processes"]:
                if process["role"] in ("detokenizer", "http") and process["running"]:
                    found.append(f"{process['role']} {process['index']}: {process['running']} requests held")
            if not found or time.monotonic() > until_s:
                return found
            await asyncio.sleep(0.5)


class ServerUnderTest:
    """launch.py on a free port with a run folder of its own."""

    def __init__(self, flags: Sequence[str]) -> None:
        self.runs = Path(tempfile.mkdtemp(prefix="c"))
        self._output = self.runs / "output"
        command = [sys.executable, str(ROOT / "launch.py"), "--port", "0", *RESTART_FLAGS, *flags]
        (self.runs / "run").mkdir()
        environment = os.environ | {"CANDOR_RUN_FOLDER": str(self.runs / "run")}
        with self._output.open("w") as output, (self.runs / "errors").open("w") as errors:
            self.process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=errors, start_new_session=True
            )

    def wait_ready(self) -> tuple[str, Path]:
        """Its address and its run directory; RuntimeError with what it said if it does not start."""
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s and self.process.poll() is None:
            found = re.search(r"is ready: .* at (http\S+)", self._output.read_text())
            if found is not None:
                (run_dir,) = (self.runs / "run").iterdir()
                return found.group(1), run_dir
            time.sleep(0.1)
        raise RuntimeError(self._output.read_text() + self.errors())

    def errors(self) -> str:
        return (self.runs / "errors").read_text()

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.runs, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a server's processes under load, and account for every request.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--concurrency", type=int, default=12)
    parser.add_argument("--answer-tokens", type=int, default=200)
    parser.add_argument("--disconnects", type=int, default=1000, help="connections cut at random moments, afterwards")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--roles", nargs="*", default=(), help="kill only these (default: every role)")
    parser.add_argument("--json", type=Path, help="where the whole account goes")
    parser.add_argument("--errors", type=Path, help="where a copy of the server's log goes")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="further flags of the server")
    given = parser.parse_args()
    server = ServerUnderTest(("--model-path", given.model, *given.flags))
    try:
        url, run_dir = server.wait_ready()
        plan = Plan(
            given.minutes * 60,
            given.concurrency,
            given.answer_tokens,
            given.seed,
            roles=tuple(given.roles),
            disconnects=given.disconnects,
        )
        report = asyncio.run(run(url, run_dir, plan))
    finally:
        if given.errors:
            given.errors.write_text(server.errors())
        server.close()
    print("\n".join(report.lines()))
    violations = report.violations
    for violation in violations[:20]:
        print(f"violation: {violation[:1000]}")
    if given.json:
        given.json.write_text(json.dumps({"violations": violations} | asdict(report), indent=1))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
