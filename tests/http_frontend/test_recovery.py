"""What happens to requests in flight when a process dies, a client leaves, or time is up."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from http_frontend.crash_requests import keep_requests
from protocol.control import Peer, PeerDown
from protocol.errors import LOST, ErrorInfo
from protocol.ids import unpack_ids
from protocol.outputs import Finish, Refused, TextBatch
from protocol.plan import PlanEvidence
from protocol.requests import AbortRequest
from tests.http_frontend.fakes import Served, chat_body, events
from tests.http_frontend.scripted import crash, down, name_of, run, settle, until, up, word


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


def test_a_request_that_waited_in_vain_is_refused_whatever_its_attempt(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        down(served, "scheduler")
        up(served, "scheduler")
        again = served.ring.requests[-1]
        assert again.attempt == 1
        late = ErrorInfo("waited too long", 503, "timeout_error", code="queue_timeout")
        served.ring.handle(Refused(again.request_id, 1, late))

    response = run(served, script, queue_timeout_s=1)
    assert response.status_code == 503 and response.json()["error"]["code"] == "queue_timeout"


def test_what_was_resumed_but_not_admitted_again_is_lost_with_the_tokenizer(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        served.ring.admit(served.ring.requests[0])
        crash(served, [])
        assert served.ring.requests[-1].attempt == 1
        down(served, "tokenizer")
        up(served, "tokenizer")
        again = served.ring.requests[-1]
        assert again.attempt == 2
        served.ring.admit(again)
        word(served, again, 0, Finish("stop"))

    assert run(served, script).status_code == 200


@pytest.mark.parametrize(("recovery", "status"), [("on", 200), ("off", 500)])
def test_a_request_lost_on_its_way_to_a_dead_process_is_sent_again(serve: Any, recovery: str, status: int) -> None:
    served: Served = serve(recovery=recovery)

    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        (first,) = served.ring.requests
        lost = Refused(first.request_id, 0, ErrorInfo("lost", 503, "service_unavailable_error", code=LOST))
        served.ring.handle(lost)
        served.ring.handle(lost)  # of an attempt that is over
        if recovery == "on":
            _, again = served.ring.requests
            assert again.attempt == 1
            served.ring.admit(again)
            word(served, again, 0, Finish("stop"))

    assert run(served, script).status_code == status


def test_an_abort_is_said_again_when_a_tokenizer_manager_dies(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        served.ring.admit(served.ring.requests[0])
        await asyncio.sleep(0.02)
        served.front.in_flight.sweep()
        await call
        assert len(served.ring.aborts) == 1
        down(served, "tokenizer")
        up(served, "tokenizer")
        assert {abort.request_id for abort in served.ring.aborts} == {served.ring.requests[0].request_id}
        assert len(served.ring.aborts) > 1

    assert run(served, script, request_timeout_s=0.01).status_code == 408


def test_a_clients_id_can_be_used_again_and_means_another_request(served: Served) -> None:
    for _ in range(2):
        assert served.chat(rid="again").status_code == 200
    first, second = served.ring.requests
    assert name_of(first) == name_of(second) == "again" and first.request_id != second.request_id


def test_the_evidence_of_a_crash_names_requests_and_hides_their_texts(serve: Any, tmp_path: Path) -> None:
    for shown in (False, True):
        served: Served = serve(log_requests=shown)
        folder = tmp_path / str(shown)
        folder.mkdir()

        async def script(served: Served, call: asyncio.Task[httpx.Response], folder: Path = folder) -> None:
            (request,) = served.ring.requests
            served.ring.admit(request)
            ids = [request.request_id]
            served.front.board.slot(3).write_plan(msgspec.msgpack.encode(PlanEvidence(1, ids, 0, 1)))
            served.ring.down.add(("scheduler", 0))
            involved = served.front.in_flight.on_peer_down(PeerDown(Peer("scheduler", 0, 0, "")))
            keep_requests(folder, 0, involved, served.front.config.args.log_requests)
            up(served, "scheduler")
            served.ring.admit(served.ring.requests[-1])
            word(served, served.ring.requests[-1], 0, Finish("stop"))

        messages = [{"role": "user", "content": "a secret"}]
        assert run(served, script, messages=messages, stop=["a secret stop"]).status_code == 200
        text = (folder / "requests-0.json").read_text()
        assert served.ring.requests[0].request_id in text
        assert ("a secret" in text) == shown


def test_a_key_that_has_enough_running_gets_429(serve: Any) -> None:
    served: Served = serve(api_key=("one", "two"), max_running_per_key=2)
    served.ring.hold = True

    def headers(key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    async def main() -> None:
        async with served.client() as client:

            def ask(key: str) -> asyncio.Task[httpx.Response]:
                return asyncio.create_task(client.post("/v1/chat/completions", json=chat_body(), headers=headers(key)))

            running = [ask("one"), ask("one"), ask("two")]
            await until(lambda: len(served.ring.requests) == 3)
            refused = await ask("one")
            assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["type"] == "rate_limit_error"
            for request in served.ring.requests:
                served.ring.admit(request)
                word(served, request, 0, Finish("stop"))
            assert [(await call).status_code for call in running] == [200, 200, 200]
            again = ask("one")
            await until(lambda: len(served.ring.requests) == 4)
            served.ring.admit(served.ring.requests[-1])
            word(served, served.ring.requests[-1], 0, Finish("stop"))
            assert (await again).status_code == 200

    asyncio.run(main())


def test_a_deadline_ends_the_request_with_an_error(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        await asyncio.sleep(0.02)
        served.front.in_flight.sweep()

    response = run(served, script, request_timeout_s=0.01)
    assert response.status_code == 408 and response.json()["error"]["type"] == "timeout_error"
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


SCOPE: dict[str, Any] = {
    "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
    "path": "/v1/chat/completions", "raw_path": b"", "query_string": b"", "root_path": "", "headers": [],
    "server": ("x", 1), "client": ("x", 1), "state": {},
}  # fmt: skip


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

        call = asyncio.create_task(served.app(dict(SCOPE), receive, send))
        await until(lambda: served.ring.requests)
        gone.set()
        await call

    asyncio.run(main())
    assert [abort.request_id for abort in served.ring.aborts] == [served.ring.requests[0].request_id]
    assert served.front.in_flight.idle and len(served.front.in_flight) == 0


@pytest.mark.parametrize("error_after", [None, 1])
def test_a_client_that_does_not_take_the_end_of_a_stream_is_cut(serve: Any, error_after: int | None) -> None:
    served: Served = serve(slow_client_timeout_s=0.05)
    served.ring.error_after = error_after
    body = msgspec.json.encode(chat_body(stream=True))

    async def main() -> None:
        never = asyncio.Event()
        pending = [{"type": "http.request", "body": body, "more_body": False}]
        last: list[Any] = []

        async def receive() -> dict[str, Any]:
            if not pending:
                await never.wait()
            return pending.pop()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                last.append(message)
                await never.wait()

        call = asyncio.create_task(served.app(dict(SCOPE), receive, send))
        await until(lambda: last)
        async with asyncio.timeout(60):
            while not call.done():
                served.front.in_flight.sweep()
                await asyncio.sleep(0)
        assert call.cancelled()

    asyncio.run(main())
    assert served.front.in_flight.idle


def test_aborting_everything_ends_what_waits_for_a_process(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        down(served, "scheduler")
        served.front.in_flight.abort(None)
        (request,) = served.ring.requests
        assert AbortRequest(request.request_id) in served.ring.aborts
        served.ring.handle(Refused(request.request_id, 1, ErrorInfo("aborted", 499, code="aborted")))

    assert run(served, script).status_code == 499


def test_aborting_by_the_clients_own_id(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        (request,) = served.ring.requests
        served.ring.admit(request)
        async with served.client() as client:
            assert (await client.post("/abort_request", json={"rid": "mine"})).status_code == 200
        assert served.ring.aborts[0].request_id == request.request_id
        word(served, request, 0, Finish("abort"))

    response = run(served, script, rid="mine")
    assert response.status_code == 499 and response.json()["error"]["code"] == "aborted"
