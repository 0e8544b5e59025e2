"""Engines side by side: starts each one in turn, runs the same workloads on it, and prints a table with ratios.

    python -m benchmarks.compare --model smollm2 --tokenizer PATH/tokenizer.json \\
        --engine "candor=python launch.py --port {port}" \\
        --engine "llama.cpp=llama-server -m model.gguf --alias smollm2 --port {port} -np 32 -c 65536" \\
        [--workloads b1,c8,c32,prefill1500,prefix1000x16,turns] [--rounds 2] [--json FILE] [--plot FILE.svg]

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bar_chart import bar_chart


@dataclass(frozen=True)
class Workload:
    """What is sent, and which figure of the report counts. `better` says in which direction."""

    name: str
    flags: str
    figure: str
    unit: str
    better: str
    item: int | None = None
    """Index into the figure where it is a list (by wave or turn)."""

    def value(self, report: dict[str, Any]) -> float:
        found = report[self.figure]
        return float(found if self.item is None else found[self.item])


PREFIX = "--concurrency 16 --requests 16 --prefix-len 1000 --input-len 16 --output-len 32 --waves 2"
TURNS = "--endpoint chat --concurrency 4 --requests 4 --turns 6 --input-len 64 --output-len 64"
WORKLOADS = (
    Workload("b1", "--concurrency 1 --requests 4 --input-len 16 --output-len 128", "out_tok_s", "tok/s", "more"),
    Workload("c8", "--concurrency 8 --requests 24 --input-len 128 --output-len 128", "out_tok_s", "tok/s", "more"),
    Workload("c32", "--concurrency 32 --requests 64 --input-len 128 --output-len 128", "out_tok_s", "tok/s", "more"),
    Workload(
        "prefill1500", "--concurrency 1 --requests 3 --input-len 1500 --output-len 1", "ttft_p50_ms", "ms", "less"
    ),
    Workload("prefix1000x16 wave 1", PREFIX, "ttft_p50_ms_by_wave", "ms", "less", 0),
    Workload("prefix1000x16 wave 2", PREFIX, "ttft_p50_ms_by_wave", "ms", "less", 1),
    Workload("turns: turn 1", TURNS, "ttft_p50_ms_by_turn", "ms", "less", 0),
    Workload("turns: turn 6", TURNS, "ttft_p50_ms_by_turn", "ms", "less", 5),
)


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


def run_workload(server: Server, workload: Workload, arguments: argparse.Namespace, seed: str) -> dict[str, Any]:
    """The report of one run of the load driver."""
    command = [sys.executable, "-m", "benchmarks.serve_load", "--base-url", server.url, "--model", arguments.model]
    command += ["--pid", str(server.pid), "--seed", seed, *shlex.split(workload.flags)]
    if arguments.tokenizer:
        command += ["--tokenizer", arguments.tokenizer]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise RuntimeError(f"the load driver failed: {done.stderr.strip()[-500:]}")
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def run_engine(
    name: str, command: str, wanted: Sequence[Workload], arguments: argparse.Namespace, round_number: int
) -> dict[str, list[float]]:
    """Figures of one engine in one round: by workload, and its start."""
    figures: dict[str, list[float]] = {}
    with Server(command, Path(arguments.logs) / f"{name}.{round_number}.log") as server:
        figures["start to first answer"] = [server.wait_for_answer(arguments.model, arguments.start_timeout_s)]
        run_workload(server, WORKLOADS[1], arguments, f"warm-up/{round_number}")
        reports: dict[str, dict[str, Any]] = {}
        for workload in wanted:
            if workload.flags not in reports:
                reports[workload.flags] = run_workload(server, workload, arguments, str(round_number))
            report = reports[workload.flags]
            figures[workload.name] = [workload.value(report)]
            print(
                f"  {name:12} {workload.name:22} {workload.value(report):9.1f} {workload.unit:6}"
                f" errors {report['errors']}  other_cpu {report.get('other_cpu_s', 0):.1f} s",
                flush=True,
            )
        figures["memory of all processes"] = [float(report.get("server_pss_mb", 0))]
    return figures


def table(engines: Sequence[str], results: dict[str, dict[str, float]], wanted: Sequence[Workload]) -> str:
    """Markdown: a row per workload, a column per engine, and the first engine's ratio to the best of the others."""
    rows = [(workload.name, workload.unit, workload.better) for workload in wanted]
    rows += [("start to first answer", "s", "less"), ("memory of all processes", "MB", "less")]
    lines = ["| workload | " + " | ".join(engines) + " | ratio |", "|---" * (len(engines) + 2) + "|"]
    for name, unit, better in rows:
        values = [results[engine].get(name) for engine in engines]
        shown = ["–" if value is None else f"{value:.1f} {unit}" for value in values]
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
    medians = {
        name: {figure: statistics.median(values) for figure, values in figures.items()}
        for name, figures in collected.items()
    }
    print(table(list(commands), medians, wanted))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(collected, indent=1))
    if arguments.plot:
        throughput = [workload.name for workload in wanted if workload.better == "more"]
        Path(arguments.plot).write_text(bar_chart("output tokens per second", throughput, medians))


if __name__ == "__main__":
    main()
