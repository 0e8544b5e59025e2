"""Questions to a tokenizer manager that dies over them."""

import asyncio

from protocol.ids import pack_ids
from protocol.outputs import Tokenized
from protocol.requests import TokenizeRequest
from tests.http_frontend.fakes import Served
from tests.http_frontend.scripted import down, until, up


def test_a_question_is_asked_again(served: Served) -> None:
    answer, served.ring.handle = served.ring.handle, lambda message: None  # a tokenizer manager that says nothing

    async def main() -> None:
        async with served.client() as client:
            call = asyncio.create_task(client.post("/tokenize", json={"prompt": "abc"}))
            await until(lambda: asked(served))
            down(served, "tokenizer")
            served.front.questions.on_peer_change()
            assert len(asked(served)) == 1, "nobody is there to be asked"
            up(served, "tokenizer")
            first, second = asked(served)
            assert first == second
            answer(Tokenized(first.request_id, pack_ids([1]), ["abc"], 512))
            answer(Tokenized(first.request_id, pack_ids([1]), ["abc"], 512))
            assert (await call).json()["tokens"] == [1]

    asyncio.run(main())


def test_a_question_waits_for_somebody_to_ask(served: Served) -> None:
    async def main() -> None:
        async with served.client() as client:
            down(served, "tokenizer")
            call = asyncio.create_task(client.post("/tokenize", json={"prompt": "abc"}))
            await until(lambda: served.front.questions.waiting)
            assert not asked(served)
            up(served, "tokenizer")
            assert (await call).status_code == 200

    asyncio.run(main())


def asked(served: Served) -> list[TokenizeRequest]:
    return [message for message in served.ring.sent if isinstance(message, TokenizeRequest)]
