"""Health reads progress off the status board; /health_generate goes through the ring."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from http_frontend.health import judge
from runtime.status_board import StatusBoard
from tests.http_frontend.fakes import Served


@pytest.fixture
def board(tmp_path: Path) -> Any:
    made = StatusBoard.create(tmp_path / "board", 3)
    for slot, role in enumerate(("supervisor", "tokenizer", "scheduler")):
        made.slot(slot).claim(role, 0, 0, 1)
        made.slot(slot).update(state="ready")
    yield made
    made.close()


def test_idle_and_busy_are_healthy(board: StatusBoard) -> None:
    assert judge(board, 60.0).verdict == "ok"
    board.slot(2).update(pending=5, steps=9)
    assert judge(board, 60.0).verdict == "ok"


def test_pending_without_steps_is_stuck(board: StatusBoard) -> None:
    board.slot(2).update(pending=5)
    found = judge(board, -1.0)
    assert found.verdict == "stuck" and not found.live
    assert any("scheduler 0" in trouble for trouble in found.troubles)


def test_a_loop_without_heartbeat_is_stuck_and_named(board: StatusBoard) -> None:
    board.slot(2).beat()
    assert "no sign of life" in judge(board, -1.0).troubles[0]


@pytest.mark.parametrize(
    ("slot", "state", "verdict", "live"),
    [
        (0, "starting", "starting", False),
        (0, "draining", "draining", False),
        (0, "stopped", "dead", False),
        (0, "recovering", "recovering", True),
        (2, "recovering", "recovering", True),
        (2, "starting", "recovering", True),
    ],
)
def test_states(board: StatusBoard, slot: int, state: Any, verdict: str, live: bool) -> None:
    board.slot(slot).update(state=state)
    found = judge(board, 60.0)
    assert (found.verdict, found.live) == (verdict, live)


def test_recovering_is_alive_and_not_ready(served: Served) -> None:
    served.front.board.slot(3).update(state="recovering")
    assert served.call("GET", "/health").status_code == 200
    assert served.call("GET", "/ready").status_code == 503
    assert served.call("GET", "/ping").status_code == 200


def test_draining_is_neither(served: Served) -> None:
    served.front.in_flight.draining = True
    assert served.call("GET", "/health").status_code == 503
    assert served.call("GET", "/ready").json()["status"] == "draining"


def test_a_real_token_on_every_replica(served: Served) -> None:
    response = served.call("GET", "/health_generate")
    assert response.status_code == 200 and set(response.json()["replica_seconds"]) == {"0"}
    (request,) = served.ring.requests
    assert request.probe and request.replica == 0 and request.sampling.max_tokens == 1


def test_the_silent_hop_is_named(serve: Any) -> None:
    served: Served = serve(stall_timeout_s=0.05)
    served.ring.hold = True

    async def run() -> Any:
        async with served.client() as client:
            return await client.get("/health_generate")

    response = asyncio.run(run())
    assert response.status_code == 503
    assert "no answer within 0.05 s" in response.json()["troubles"][0]
    assert served.ring.aborts and served.front.in_flight.idle


def test_without_a_scheduler(served: Served) -> None:
    served.ring.down.add(("scheduler", 0))
    assert served.call("GET", "/health_generate").status_code == 503
