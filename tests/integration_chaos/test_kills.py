"""kill -9 of each part under load: whoever was connected to a part that lives gets the whole, correct answer."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.chaos import Plan, leaks, run
from benchmarks.chaos_load import Expected, Load, Pieces, make_questions
from benchmarks.chaos_storm import storm
from runtime.status_board import ProcessStatus, StatusBoard
from tests.integration.servers import Server

ANSWER_TOKENS = 120
HANG_S = 90.0
SEEN_BEFORE_THE_KILL = 5


def board_of(server: Server) -> StatusBoard:
    (run_dir,) = server.runs.iterdir()
    return StatusBoard.open(run_dir / "board")


def status_of(server: Server, role: str, index: int = 0) -> ProcessStatus:
    board = board_of(server)
    (found,) = [status for status in board.read_all() if (status.role, status.index) == (role, index)]
    board.close()
    return found


def wait_whole(server: Server) -> None:
    """Until every process is ready."""

    def whole() -> bool:
        board = board_of(server)
        states = {status.state for status in board.read_all()}
        board.close()
        return states == {"ready"}

    server.wait_for(whole, "everybody is ready again")


@pytest.fixture(scope="module")
def expected(victim: Server) -> Expected:
    """What the server answers when nobody disturbs it."""

    async def learn() -> Expected:
        load = Load(victim.url, make_questions(ANSWER_TOKENS), seed=1, hang_s=HANG_S)
        try:
            return await load.learn()
        finally:
            await load.close()

    return asyncio.run(learn())


@pytest.mark.parametrize("role", ["scheduler", "detokenizer", "tokenizer"])
def test_a_kill_under_load_is_a_pause(victim: Server, expected: Expected, role: str) -> None:
    """Streams of every kind, some choices ended and some grammars half way, are killed in the middle."""
    before = status_of(victim, role)

    async def main() -> None:
        questions = make_questions(ANSWER_TOKENS)
        load = Load(victim.url, questions, seed=1, hang_s=HANG_S, expected=expected)
        begun = asyncio.Semaphore(0)

        async def ask(name: str) -> tuple[str, Pieces]:
            pieces, chunks = Pieces(), 0
            (question,) = [question for question in questions if question.name == name]
            async for data in load.stream(question, {}, pieces):
                pieces.take(data)
                chunks += 1
                if chunks == SEEN_BEFORE_THE_KILL:
                    begun.release()
            begun.release()
            return name, pieces

        calls = [asyncio.create_task(ask(question.name)) for question in questions]
        for _ in calls:
            await begun.acquire()
        os.kill(before.pid, signal.SIGKILL)
        async with asyncio.timeout(HANG_S):
            for name, pieces in await asyncio.gather(*calls):
                assert pieces.error == "" and pieces.done, name
                assert pieces.answer == expected[name], name
        await load.close()
        assert await leaks(victim.url) == []

    asyncio.run(main())
    wait_whole(victim)
    after = status_of(victim, role)
    assert after.incarnation > before.incarnation and after.pid != before.pid


async def until(condition: Callable[[], Any], what: str) -> None:
    """Polls what must come true while the test's own calls go on; the time limit only ends a failing test."""
    until_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < until_s, f"never: {what}"
        await asyncio.sleep(0.01)


def test_a_killed_http_worker_takes_its_connections_and_nothing_else(victim: Server) -> None:
    """Who accepts a connection is the kernel's choice, unless the other one is stopped: so each holds half of them."""
    wait_whole(victim)
    workers = [status_of(victim, "http", index).pid for index in (0, 1)]

    async def main() -> None:
        async with httpx.AsyncClient(base_url=victim.url, timeout=HANG_S) as client:
            body = {"prompt": "x", "max_tokens": 2000, "temperature": 0, "ignore_eos": True, "stream": True}
            outcomes: list[str] = []

            async def ask() -> None:
                try:
                    async with client.stream("POST", "/v1/completions", json=body) as response:
                        async for _ in response.aiter_lines():
                            pass
                    outcomes.append("whole")
                except httpx.TransportError:
                    outcomes.append("broken")

            async def hold(index: int) -> list[asyncio.Task[None]]:
                """Four streams that this worker serves."""
                os.kill(workers[1 - index], signal.SIGSTOP)
                calls = [asyncio.create_task(ask()) for _ in range(4)]
                await until(lambda: status_of(victim, "http", index).running == 4, f"worker {index} holds four")
                return calls

            lost = await hold(0)
            os.kill(workers[1], signal.SIGCONT)
            kept = await hold(1)
            os.kill(workers[0], signal.SIGKILL)
            short = body | {"stream": False, "max_tokens": 1}
            assert (await client.post("/v1/completions", json=short)).status_code == 200, "the port keeps answering"
            await asyncio.wait(lost + kept, timeout=HANG_S)
            assert sorted(outcomes) == ["broken"] * 4 + ["whole"] * 4
        assert await leaks(victim.url) == []

    asyncio.run(main())
    wait_whole(victim)


def test_a_death_leaves_evidence_without_what_clients_wrote(victim: Server) -> None:
    secret = "a secret that nobody may read later"
    wait_whole(victim)

    async def main() -> None:
        async with httpx.AsyncClient(base_url=victim.url, timeout=HANG_S) as client:
            body = {"prompt": secret, "max_tokens": 1500, "temperature": 0, "ignore_eos": True}
            call = asyncio.create_task(client.post("/v1/completions", json=body))
            await until(lambda: status_of(victim, "scheduler").running, "it runs")
            os.kill(status_of(victim, "scheduler").pid, signal.SIGKILL)
            assert (await call).status_code == 200

    known = set(evidence_of(victim, "scheduler"))
    asyncio.run(main())
    (folder,) = set(evidence_of(victim, "scheduler")) - known
    assert "SIGKILL" in (folder / "reason.txt").read_text()
    names = {path.name.partition("-")[0] for path in folder.iterdir()}
    assert names >= {"reason.txt", "board.json", "plan.json", "requests"}
    everything = "".join(path.read_text() for path in folder.iterdir())
    assert secret not in everything and "redacted" in everything


def evidence_of(server: Server, role: str) -> list[Path]:
    return list(Path(server.state()["crash_dump_folder"]).glob(f"*-{role}-*"))


def test_after_a_storm_of_disconnects_every_page_is_back(victim: Server) -> None:
    asyncio.run(storm(victim.url, make_questions(ANSWER_TOKENS), 150, seed=3))
    assert asyncio.run(leaks(victim.url)) == []


def test_chaos_in_short(victim: Server, expected: Expected) -> None:
    """What benchmarks/chaos.py does for minutes. The kills depend on the seed, their moments on the machine."""
    wait_whole(victim)
    (run_dir,) = victim.runs.iterdir()
    plan = Plan(
        seconds=4.0,
        concurrency=6,
        answer_tokens=ANSWER_TOKENS,
        seed=5,
        pauses_s=(0.2, 1.0),
        hang_s=HANG_S,
        disconnects=0,
    )
    report = asyncio.run(run(victim.url, run_dir, plan, expected))
    assert report.violations == []
    assert report.faults and report.count("whole")


def test_a_client_that_stops_reading_is_cut_and_delays_nobody(victim: Server) -> None:
    """Eight choices with all their logprobs are more than the sockets between can hold."""
    wait_whole(victim)
    body = {
        "prompt": "x", "max_tokens": 8000, "n": 8, "seed": 1, "logprobs": 5, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    with httpx.stream("POST", f"{victim.url}/v1/completions", json=body, timeout=HANG_S) as response:
        assert response.status_code == 200
        began_s = time.monotonic()
        victim.wait_for(lambda: "stopped reading is cut" in victim.errors(), "the client is cut")
        quick = httpx.post(f"{victim.url}/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=HANG_S)
        assert quick.status_code == 200 and time.monotonic() - began_s < HANG_S
        with pytest.raises(httpx.TransportError):
            for _ in response.iter_raw():
                pass
    assert asyncio.run(leaks(victim.url)) == []
