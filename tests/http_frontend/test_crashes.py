"""Whom a crash is blamed on, what it leaves for people to read, and crashes without recovery."""

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from protocol.control import Role
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


@pytest.mark.parametrize("role", ["detokenizer", "tokenizer"])
def test_suspects_of_other_roles_go_one_by_one_until_the_guilty_one_is_found(served: Served, role: Role) -> None:
    """Each is sent alone: one gets far enough to be beyond suspicion, one kills, one ends."""

    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        async with served.client() as client:

            def ask(name: str) -> asyncio.Task[httpx.Response]:
                return asyncio.create_task(client.post("/v1/chat/completions", json=chat_body(rid=name)))

            guilty = ask("guilty")
            await until(lambda: len(served.ring.requests) == 2)
            last = ask("last")
            await until(lambda: len(served.ring.requests) == 3)
            for _ in range(2):
                down(served, role)
                up(served, role)
            sent = served.ring.requests
            assert [name_of(request) for request in sent] == ["first", "guilty", "last"] * 2 + ["first"]
            served.ring.admit(sent[-1])
            for _ in range(16):
                word(served, sent[-1], 0)
            assert name_of(served.ring.requests[-1]) == "guilty", "the first is beyond suspicion, and goes on"
            served.ring.admit(sent[-1])
            down(served, role)
            assert (await guilty).status_code == 500
            assert (await guilty).json()["error"]["message"].startswith(f"the {role} process died each time")
            up(served, role)
            for name in ("first", "last"):
                (*_, again) = [request for request in served.ring.requests if name_of(request) == name]
                served.ring.admit(again)
                word(served, again, 1, Finish("stop"))
            assert (await last).json()["choices"][0]["message"]["content"] == " wor"

    assert run(served, script, rid="first").json()["choices"][0]["message"]["content"] == "Hello" * 16 + " wor"


def test_a_suspect_that_leaves_makes_room(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        async with served.client() as client:
            other = asyncio.create_task(client.post("/v1/chat/completions", json=chat_body(rid="other")))
            await until(lambda: len(served.ring.requests) == 2)
            for _ in range(2):
                down(served, "detokenizer")
                up(served, "detokenizer")
            assert name_of(served.ring.requests[-1]) == "leaves"
            call.cancel()
            await until(lambda: name_of(served.ring.requests[-1]) == "other")
            served.ring.admit(served.ring.requests[-1])
            word(served, served.ring.requests[-1], 0, Finish("stop"))
            assert (await other).status_code == 200

    with pytest.raises(asyncio.CancelledError):
        run(served, script, rid="leaves")


def test_deaths_that_a_request_got_on_between_are_not_its_own(served: Served) -> None:
    async def script(served: Served, call: asyncio.Task[httpx.Response]) -> None:
        for _ in range(5):
            served.ring.admit(served.ring.requests[-1])
            for _ in range(16):
                word(served, served.ring.requests[-1], 1)
            down(served, "detokenizer")
            up(served, "detokenizer")
        served.ring.admit(served.ring.requests[-1])
        word(served, served.ring.requests[-1], 2, Finish("stop"))

    assert run(served, script).json()["choices"][0]["message"]["content"] == " wor" * 80 + "ld"
