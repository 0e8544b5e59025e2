"""A chat whose ring says what a script says: what requests in flight go through."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec

from protocol.control import Peer, PeerDown, PeerUp, Role
from protocol.outputs import Finish, TextBatch
from protocol.plan import PlanEvidence
from protocol.requests import GenerateRequest
from tests.http_frontend.fakes import Served, chat_body

Script = Callable[[Served, asyncio.Task[httpx.Response]], Awaitable[None]]


def run(served: Served, script: Script, **fields: Any) -> httpx.Response:
    """Starts a chat that gets no outputs by itself, runs the script, and returns the answer."""
    served.ring.hold = True

    async def main() -> httpx.Response:
        async with served.client() as client:
            call = asyncio.create_task(client.post("/v1/chat/completions", json=chat_body(**fields)))
            await until(lambda: served.ring.requests or call.done())
            await script(served, call)
            return await call

    return asyncio.run(main())


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


def down(served: Served, role: Role) -> None:
    served.ring.down.add((role, 0))
    served.front.in_flight.on_peer_down(PeerDown(Peer(role, 0, 0, "")))


def up(served: Served, role: Role) -> None:
    served.ring.down.discard((role, 0))
    served.front.on_peer_up(PeerUp(Peer(role, 0, 1, "")))


def name_of(request: GenerateRequest) -> str:
    """As the client called it."""
    return request.request_id.partition("-")[2].partition("~")[0]


def word(served: Served, request: GenerateRequest, place: int, finish: Finish | None = None) -> None:
    served.ring.handle(TextBatch([served.ring.output(request, 0, place, served.ring.words[place], finish)]))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def crash(served: Served, computed: list[GenerateRequest], incarnation: int = 0, of: int | None = None) -> None:
    """The scheduler dies while it computes these; it was incarnation `of`."""
    ids = [request.request_id for request in computed]
    evidence = PlanEvidence(1, ids, 0, len(ids), incarnation)
    served.front.board.slot(3).write_plan(msgspec.msgpack.encode(evidence))
    served.ring.down.add(("scheduler", 0))
    died = Peer("scheduler", 0, incarnation if of is None else of, "")
    served.front.in_flight.on_peer_down(PeerDown(died))
    up(served, "scheduler")
