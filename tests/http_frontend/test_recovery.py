"""What happens to requests in flight when a process dies, a client leaves, or time is up."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec

from protocol.control import Peer, PeerDown, PeerUp, Role
from protocol.errors import ErrorInfo
from protocol.ids import unpack_ids
from protocol.outputs import Finish, Refused, TextBatch
from protocol.plan import PlanEvidence
from protocol.requests import GenerateRequest
from tests.http_frontend.fakes import Served, chat_body, events

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
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


def down(served: Served, role: Role) -> None:
    served.ring.down.add((role, 0))
    served.front.in_flight.on_peer_down(PeerDown(Peer(role, 0, 0, "")))


def up(served: Served, role: Role) -> None:
    served.ring.down.discard((role, 0))
    served.front.on_peer_up(PeerUp(Peer(role, 0, 1, "")))


def word(served: Served, request: GenerateRequest, place: int, finish: Finish | None = None) -> None:
    served.ring.handle(TextBatch([served.ring.output(request, 0, place, served.ring.words[place], finish)]))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_dead_scheduler_is_a_pause_and_the_text_goes_on_where_it_was(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        (first,) = served.ring.requests
        served.ring.admit(first)
        word(served, first, 0)
        await settle()
        down(served, "scheduler")
        assert len(served.ring.requests) == 1, "nothing is sent while there is no scheduler"
        up(served, "scheduler")
        again = served.ring.requests[1]
        assert again.attempt == 1 and again.sampling.seed == first.sampling.seed
        (progress,) = again.resume
        assert unpack_ids(progress.ids) == [100] and not progress.finished
        word(served, first, 1)  # a late output of the dead attempt
        served.ring.admit(again)
        word(served, again, 1)
        word(served, again, 2, Finish("stop"))

    data = events(run(served, script, stream=True))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in data[:-1]) == "Hello world"
    assert data[-1] == "[DONE]" and data[-2]["choices"][0]["finish_reason"] == "stop"


def test_a_finished_choice_is_not_computed_again(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        (first,) = served.ring.requests
        served.ring.admit(first)
        served.ring.handle(
            TextBatch(
                [served.ring.output(first, 0, 0, "a", Finish("stop")), served.ring.output(first, 1, 0, "b", None)]
            )
        )
        await settle()
        down(served, "detokenizer")
        up(served, "detokenizer")
        again = served.ring.requests[1]
        assert [progress.finished for progress in again.resume] == [True, False]
        served.ring.admit(again)
        served.ring.handle(TextBatch([served.ring.output(again, 1, 1, "c", Finish("stop"))]))

    body = run(served, script, n=2).json()
    assert [choice["message"]["content"] for choice in body["choices"]] == ["a", "bc"]


def test_a_dead_tokenizer_costs_only_what_was_not_admitted(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        down(served, "tokenizer")
        up(served, "tokenizer")
        again = served.ring.requests[1]
        assert again.attempt == 1
        served.ring.admit(again)
        down(served, "tokenizer")
        up(served, "tokenizer")
        assert len(served.ring.requests) == 2
        word(served, again, 0, Finish("stop"))

    assert run(served, script).json()["choices"][0]["message"]["content"] == "Hello"


def test_a_resumed_request_is_not_refused_for_a_full_queue(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        (first,) = served.ring.requests
        served.ring.admit(first)
        down(served, "scheduler")
        up(served, "scheduler")
        served.ring.handle(Refused(first.request_id, 1, ErrorInfo("full", 503, "service_unavailable_error")))
        await until(lambda: len(served.ring.requests) == 3)
        again = served.ring.requests[2]
        served.ring.admit(again)
        word(served, again, 0, Finish("stop"))

    assert run(served, script).status_code == 200


def test_recovery_off_fails_at_once(serve: Any) -> None:
    served: Served = serve(recovery="off")

    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        served.ring.admit(served.ring.requests[0])
        word(served, served.ring.requests[0], 0)
        await settle()
        down(served, "scheduler")

    data = events(run(served, script, stream=True))
    assert data[-1] == "[DONE]" and data[-2]["error"]["code"] == "engine_crashed"
    refused = served.chat()
    assert refused.status_code == 503 and refused.headers["retry-after"]


def test_the_guilty_request_is_given_up_and_the_others_finish(served: Served) -> None:
    slot = served.front.board.slot(3)

    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        async with served.client() as client:
            other = asyncio.create_task(client.post("/v1/chat/completions", json=chat_body(rid="innocent")))
            await until(lambda: len(served.ring.requests) == 2)
            for crash in range(3):
                latest = {request.request_id: request for request in served.ring.requests}
                assert latest["0-guilty"].suspect == latest["0-innocent"].suspect == (crash > 1)
                for request in latest.values():
                    served.ring.admit(request)
                computed = ["0-guilty"] if crash == 2 else list(latest)
                slot.write_plan(msgspec.msgpack.encode(PlanEvidence(crash, computed, 0, len(computed))))
                down(served, "scheduler")
                up(served, "scheduler")
            again = served.ring.requests[-1]
            assert again.request_id == "0-innocent"
            served.ring.admit(again)
            word(served, again, 0, Finish("stop"))
            assert (await other).json()["choices"][0]["message"]["content"] == "Hello"

    response = run(served, script, rid="guilty")
    assert response.status_code == 500 and response.json()["error"]["code"] == "engine_crashed"


def test_a_deadline_ends_the_request_with_an_error(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        await asyncio.sleep(0.02)
        served.front.in_flight.sweep()

    response = run(served, script, request_timeout_s=0.01)
    assert response.status_code == 504 and response.json()["error"]["type"] == "timeout_error"
    assert served.ring.aborts[0].request_id == served.ring.requests[0].request_id


def test_a_drain_refuses_new_work_and_ends_what_is_left(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        served.front.in_flight.draining = True
        async with served.client() as client:
            refused = await client.post("/v1/chat/completions", json=chat_body())
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
        served.front.in_flight.fail_all(ErrorInfo("over", 503, "service_unavailable_error", code="draining"))

    assert run(served, script).status_code == 503
    assert served.front.in_flight.idle


def test_a_client_that_leaves_aborts_its_request(served: Served) -> None:
    """Plain ASGI, as uvicorn speaks it: the disconnect comes while nothing has been sent yet."""
    served.ring.hold = True
    body = msgspec.json.encode(chat_body())

    async def main() -> None:
        gone = asyncio.Event()
        pending = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if pending:
                return pending.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError("nobody is there to be answered")

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/v1/chat/completions", "raw_path": b"", "query_string": b"", "root_path": "", "headers": [],
            "server": ("x", 1), "client": ("x", 1), "state": {},
        }  # fmt: skip
        call = asyncio.create_task(served.app(scope, receive, send))
        await until(lambda: served.ring.requests)
        gone.set()
        await call

    asyncio.run(main())
    assert [abort.request_id for abort in served.ring.aborts] == [served.ring.requests[0].request_id]
    assert served.front.in_flight.idle and len(served.front.in_flight) == 0


def test_aborting_by_the_clients_own_id(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        (request,) = served.ring.requests
        served.ring.admit(request)
        async with served.client() as client:
            assert (await client.post("/abort_request", json={"rid": "mine"})).status_code == 200
        assert served.ring.aborts[0].request_id == "0-mine"
        word(served, request, 0, Finish("abort"))

    response = run(served, script, rid="mine")
    assert response.status_code == 409 and response.json()["error"]["code"] == "aborted"
