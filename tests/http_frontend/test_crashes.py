"""Whom a crash is blamed on, what it leaves for people to read, and crashes without recovery."""

import asyncio
from typing import Any

import httpx
import msgspec

from protocol.outputs import Finish
from protocol.plan import PlanEvidence
from tests.http_frontend.fakes import Served, chat_body, events
from tests.http_frontend.scripted import crash, down, name_of, run, settle, until, up, word


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
                latest = {name_of(request): request for request in served.ring.requests}
                assert latest["guilty"].suspect == latest["innocent"].suspect == (crash > 1)
                for request in latest.values():
                    served.ring.admit(request)
                computed = [latest[name].request_id for name in (["guilty"] if crash == 2 else latest)]
                slot.write_plan(msgspec.msgpack.encode(PlanEvidence(crash, computed, 0, len(computed))))
                down(served, "scheduler")
                up(served, "scheduler")
            again = served.ring.requests[-1]
            assert name_of(again) == "innocent"
            served.ring.admit(again)
            word(served, again, 0, Finish("stop"))
            assert (await other).json()["choices"][0]["message"]["content"] == "Hello"

    response = run(served, script, rid="guilty")
    assert response.status_code == 500 and response.json()["error"]["code"] == "engine_crashed"


def test_who_gets_on_between_crashes_is_innocent(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        for round in range(5):
            latest = served.ring.requests[-1]
            assert latest.attempt == round and not latest.suspect
            served.ring.admit(latest)
            for _ in range(16):
                word(served, latest, 1)
            crash(served, [latest])
        served.ring.admit(served.ring.requests[-1])
        word(served, served.ring.requests[-1], 2, Finish("stop"))

    assert run(served, script).json()["choices"][0]["message"]["content"] == " wor" * 80 + "ld"


def test_the_plan_of_an_earlier_incarnation_convicts_nobody(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        for _ in range(4):
            served.ring.admit(served.ring.requests[-1])
            crash(served, [served.ring.requests[0]], incarnation=1, of=2)
        again = served.ring.requests[-1]
        assert not again.suspect
        served.ring.admit(again)
        word(served, again, 0, Finish("stop"))

    assert run(served, script).status_code == 200


def test_a_request_that_kills_tokenizers_is_given_up(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        for _ in range(3):
            down(served, "tokenizer")
            up(served, "tokenizer")

    response = run(served, script)
    assert response.status_code == 500 and response.json()["error"]["code"] == "engine_crashed"
    assert len(served.ring.requests) == 3
