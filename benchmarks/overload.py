"""Overload: far more requests than the server takes, for minutes. What is refused, how fast, and whether memory stays flat.

python -m benchmarks.overload --minutes 10 [--model smollm2] [--clients 200] [-- --max-queued-requests 64 ...]
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import httpx

from benchmarks.chaos import ServerUnderTest
from runtime.status_board import StatusBoard

PROMPT = "The five boxing wizards jump quickly. "
WARM_UP_SHARE = 0.2
"""Memory is compared with what it was after this share of the time."""


class Flood:
    """Clients that ask again as soon as they have an answer, whatever it is; a refused one waits a moment."""

    def __init__(self, url: str, until_s: float) -> None:
        self.statuses: Counter[int] = Counter()
        self.refusal_seconds: list[float] = []
        self._url = url
        self._until_s = until_s

    async def client(self, number: int) -> None:
        asked = 0
        # A connection pool for each: one for all spends seconds on looking for a free connection.
        async with httpx.AsyncClient(base_url=self._url, timeout=600, verify=False) as http:
            while time.monotonic() < self._until_s:
                asked += 1
                body = {"prompt": f"{number} {asked} {PROMPT * 8}", "max_tokens": 64, "ignore_eos": True}
                began_s = time.monotonic()
                response = await http.post("/v1/completions", json=body)
                self.statuses[response.status_code] += 1
                if response.status_code == 503:
                    assert "retry-after" in response.headers
                    self.refusal_seconds.append(time.monotonic() - began_s)
                    await asyncio.sleep(0.2)


def resident_megabytes(run_dir: Path) -> dict[str, int]:
    """Resident memory of each process on the status board."""
    board = StatusBoard.open(run_dir / "board")
    try:
        return {f"{s.role} {s.index}": _resident(s.pid) for s in board.read_all() if s.pid}
    finally:
        board.close()


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024
    return 0


async def run(url: str, run_dir: Path, seconds: float, clients: int) -> tuple[Flood, dict[str, int], dict[str, int]]:
    flood = Flood(url, time.monotonic() + seconds)
    tasks = [asyncio.create_task(flood.client(number)) for number in range(clients)]
    await asyncio.sleep(seconds * WARM_UP_SHARE)
    early = resident_megabytes(run_dir)
    await asyncio.sleep(seconds * (1 - WARM_UP_SHARE))
    late = resident_megabytes(run_dir)
    await asyncio.gather(*tasks)
    return flood, early, late


def main() -> int:
    parser = argparse.ArgumentParser(description="Overload a server and watch its memory.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="further flags of the server")
    given = parser.parse_args()
    server = ServerUnderTest(("--model-path", given.model, "--max-queued-requests", "64", *given.flags))
    try:
        url, run_dir = server.wait_ready()
        flood, early, late = asyncio.run(run(url, run_dir, given.minutes * 60, given.clients))
    finally:
        server.close()
    print(f"answers by status: {dict(flood.statuses)}")
    if flood.refusal_seconds:
        milliseconds = sorted(1000 * seconds for seconds in flood.refusal_seconds)
        worst = milliseconds[int(0.99 * (len(milliseconds) - 1))]
        print(f"a refusal takes {statistics.median(milliseconds):.0f} ms (median), {worst:.0f} ms (99 %)")
    for name, megabytes in early.items():
        print(
            f"{name:<16}{megabytes:>6} MB after {WARM_UP_SHARE:.0%} of the time, {late.get(name, 0):>6} MB at the end"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
