"""Engines side by side: starts each one in turn, runs the same workloads on it, and prints a table with ratios.

    python -m benchmarks.compare --model smollm2 --tokenizer PATH/tokenizer.json \\
        --engine "candor=python launch.py --port {port}" \\
        --engine "llama.cpp=llama-server -m model.gguf --alias smollm2 --port {port} -np 32 -c 65536" \\
        [--workloads b1,c8,c32,prefill1500,prefix1000x16,turns] [--rounds 2] [--json FILE] [--plot FILE.svg]

Workloads are named by how they begin. `shared32` is c32 while another process takes a core; `tiny64` measures what an
engine costs beside its model, and wants one that costs next to nothing (`benchmarks/tiny_checkpoint.py` makes it).

The first engine is the one that is compared; ratios are its figure by the best of the others. Rounds go over all engines
before they repeat, so that a disturbed minute does not fall on one of them alone, and each figure is the median of the
rounds. `other_cpu` is the CPU time of neither server nor client: a run with much of it says little.
"""

import argparse
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.bar_chart import bar_chart
from benchmarks.process_tree import tree_usage

Report = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """What is sent, and which figure of the report counts. `better` says in which direction."""

    name: str
    flags: str
    unit: str
    better: Literal["more", "less"]
    figure: Callable[[Report], float]
    busy_cores: int = 0
    """Processes that do nothing but compute meanwhile: a machine that is shared."""


def out_tok_s(report: Report) -> float:
    return float(report["out_tok_s"])


def ttft_ms(report: Report) -> float:
    return float(report["ttft_p50_ms"])


def wave_ms(number: int) -> Callable[[Report], float]:
    return lambda report: float(report["ttft_p50_ms_by_wave"][number - 1])


def turn_ms(number: int) -> Callable[[Report], float]:
    return lambda report: float(report["ttft_p50_ms_by_turn"][number - 1])


def itl_spread(report: Report) -> float:
    return float(report["itl_p99_ms"] / report["itl_p50_ms"])


def cpu_ms_per_token(report: Report) -> float:
    return float(1000 * report["server_cpu_s"] / report["out_tok"])


C32 = "--concurrency 32 --requests 64 --input-len 128 --output-len 128"
PREFIX = "--concurrency 16 --requests 16 --prefix-len 1000 --input-len 16 --output-len 32 --waves 2"
TURNS = "--endpoint chat --concurrency 4 --requests 4 --turns 6 --input-len 64 --output-len 64"
TINY64 = "--concurrency 64 --requests 200 --input-len 32 --output-len 128"
WORKLOADS = (
    Workload("b1", "--concurrency 1 --requests 4 --input-len 16 --output-len 128", "tok/s", "more", out_tok_s),
    Workload("c8", "--concurrency 8 --requests 24 --input-len 128 --output-len 128", "tok/s", "more", out_tok_s),
    Workload("c32", C32, "tok/s", "more", out_tok_s),
    Workload("c32: ITL p99 / p50", C32, "x", "less", itl_spread),
    Workload("shared32: c32 beside a busy core", C32, "tok/s", "more", out_tok_s, busy_cores=1),
    Workload("prefill1500", "--requests 3 --input-len 1500 --output-len 1", "ms", "less", ttft_ms),
    Workload("prefix1000x16 wave 1", PREFIX, "ms", "less", wave_ms(1)),
    Workload("prefix1000x16 wave 2", PREFIX, "ms", "less", wave_ms(2)),
    Workload("turns: turn 1", TURNS, "ms", "less", turn_ms(1)),
    Workload("turns: turn 6", TURNS, "ms", "less", turn_ms(6)),
    Workload("tiny64", TINY64, "tok/s", "more", out_tok_s),
    Workload("tiny64: server CPU per token", TINY64, "ms", "less", cpu_ms_per_token),
)
IDLE_S = 10.0


class Server:
    """One engine, running. Its whole process group ends with the context."""

    def __init__(self, command: str, log: Path) -> None:
        self.port = _free_port()
        self._log = log.open("w")
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            shlex.split(command.replace("{port}", str(self.port))),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for_answer(self, model: str, timeout_s: float) -> float:
        """Seconds from the start to the first completion; RuntimeError if it ends or takes too long."""
        body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 1}).encode()
        request = urllib.request.Request(
            f"{self.url}/v1/completions", body, {"Content-Type": "application/json"}, method="POST"
        )
        while time.monotonic() - self.began < timeout_s:
            if self._process.poll() is not None:
                raise RuntimeError(f"it ended with status {self._process.returncode}; see {self._log.name}")
            try:
                with urllib.request.urlopen(request, timeout=timeout_s):
                    return time.monotonic() - self.began
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise RuntimeError(f"no answer within {timeout_s} s; see {self._log.name}")

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        os.killpg(self.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """So many processes that spin."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def run_workload(server: Server, workload: Workload, arguments: argparse.Namespace, seed: str) -> Report:
    """The report of one run of the load driver."""
    command = [sys.executable, "-m", "benchmarks.serve_load", "--base-url", server.url, "--model", arguments.model]
    command += ["--pid", str(server.pid), "--seed", seed, *shlex.split(workload.flags)]
    if arguments.tokenizer:
        command += ["--tokenizer", arguments.tokenizer]
    with busy_cores(workload.busy_cores):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise RuntimeError(f"the load driver failed: {done.stderr.strip()[-500:]}")
    report: Report = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def run_engine(
    name: str, command: str, wanted: Sequence[Workload], arguments: argparse.Namespace, round_number: int
) -> dict[str, list[float]]:
    """Figures of one engine in one round: by workload, its start, its memory, and what it costs at rest."""
    figures: dict[str, list[float]] = {}
    with Server(command, Path(arguments.logs) / f"{name}.{round_number}.log") as server:
        figures["start to first answer"] = [server.wait_for_answer(arguments.model, arguments.start_timeout_s)]
        run_workload(server, WORKLOADS[1], arguments, f"warm-up/{round_number}")
        reports: dict[tuple[str, int], Report] = {}
        for workload in wanted:
            key = (workload.flags, workload.busy_cores)
            if key not in reports:
                reports[key] = run_workload(server, workload, arguments, str(round_number))
            report = reports[key]
            figures[workload.name] = [workload.figure(report)]
            print(
                f"  {name:12} {workload.name:32} {workload.figure(report):9.2f} {workload.unit:6}"
                f" errors {report['errors']}  other_cpu {report.get('other_cpu_s', 0):.1f} s",
                flush=True,
            )
        before = tree_usage(server.pid)
        time.sleep(IDLE_S)
        after = tree_usage(server.pid)
        figures["idle CPU of all processes"] = [100 * (after.cpu_s - before.cpu_s) / IDLE_S]
        figures["memory of all processes"] = [float(after.pss_bytes >> 20)]
    return figures


def table(engines: Sequence[str], results: dict[str, dict[str, float]], wanted: Sequence[Workload]) -> str:
    """Markdown: a row per workload, a column per engine, and the first engine's ratio to the best of the others."""
    rows = [(workload.name, workload.unit, workload.better) for workload in wanted]
    rows += [
        ("start to first answer", "s", "less"),
        ("idle CPU of all processes", "% of a core", "less"),
        ("memory of all processes", "MB", "less"),
    ]
    lines = ["| workload | " + " | ".join(engines) + " | ratio |", "|---" * (len(engines) + 2) + "|"]
    for name, unit, better in rows:
        values = [results[engine].get(name) for engine in engines]
        shown = ["–" if value is None else f"{value:.4g} {unit}" for value in values]
        others = [value for value in values[1:] if value is not None]
        ratio = "–"
        if values[0] is not None and others:
            best = max(others) if better == "more" else min(others)
            ratio = f"{values[0] / best:.2f} x" if best else "–"
        lines.append(f"| {name} | " + " | ".join(shown) + f" | {ratio} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", required=True, metavar="NAME=COMMAND", help="may be repeated")
    parser.add_argument("--model", required=True, help="the name that every engine serves it under")
    parser.add_argument("--tokenizer", help="tokenizer.json, for prompts of exact lengths")
    parser.add_argument("--workloads", default="b1,c8,c32,prefill1500,prefix1000x16,turns")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--start-timeout-s", type=float, default=300.0)
    parser.add_argument("--logs", default=".", help="folder for the engines' logs")
    parser.add_argument("--json", help="write all figures there")
    parser.add_argument("--plot", help="write a bar chart (SVG) there")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    names = arguments.workloads.split(",")
    wanted = [workload for workload in WORKLOADS if any(workload.name.startswith(name) for name in names)]
    commands = dict(engine.split("=", 1) for engine in arguments.engine)
    collected: dict[str, dict[str, list[float]]] = {name: {} for name in commands}
    for round_number in range(arguments.rounds):
        for name, command in commands.items():
            print(f"round {round_number + 1}: {name}", flush=True)
            for figure, values in run_engine(name, command, wanted, arguments, round_number).items():
                collected[name].setdefault(figure, []).extend(values)
            if arguments.json:  # after each engine: a run that is cut keeps what it has
                Path(arguments.json).write_text(json.dumps(collected, indent=1))
    medians = {
        name: {figure: statistics.median(values) for figure, values in figures.items()}
        for name, figures in collected.items()
    }
    print(table(list(commands), medians, wanted))
    if arguments.plot:
        throughput = [workload.name for workload in wanted if workload.unit == "tok/s"]
        Path(arguments.plot).write_text(bar_chart("output tokens per second", throughput, medians))


if __name__ == "__main__":
    main()
