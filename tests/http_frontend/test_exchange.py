"""What waits for a client is merged, kept alive, and logged without forging lines."""

import asyncio
import logging
from typing import Any

import pytest

from http_frontend.exchange import Batch, Exchange, merge_outputs
from protocol.errors import ErrorInfo, RequestError
from protocol.ids import pack_ids
from protocol.outputs import Finish, TextOutput
from protocol.requests import GenerateRequest, TextPrompt
from protocol.sampling import SamplingParameters
from tests.http_frontend.fakes import Served, chat_body, logprob
from tests.http_frontend.scripted import settle


def output(text: str, ids: list[int], index: int = 0, finish: Finish | None = None, **more: Any) -> TextOutput:
    return TextOutput("0-a", 0, index, text, pack_ids(ids), ids[-1], finish, **more)


def test_a_client_that_lags_gets_one_piece_per_choice() -> None:
    first = output("a", [1], cached_tokens=3, logprobs=[logprob("a")])
    second = output("b", [2], logprobs=[logprob("b")])
    last = output("c", [3], finish=Finish("stop"), logprobs=[logprob("c")])
    other = output("x", [9], index=1)
    merged = merge_outputs([(0, first), (0, other), (0, second), (1, output("p", [4])), (0, last)])
    assert [(position, one.index, one.text) for position, one in merged] == [(0, 0, "abc"), (0, 1, "x"), (1, 0, "p")]
    whole = merged[0][1]
    assert whole.ids == pack_ids([1, 2, 3]) and whole.completion_tokens == 3 and whole.finish == Finish("stop")
    assert whole.cached_tokens == 3 and whole.logprobs is not None and len(whole.logprobs) == 3


def test_what_came_before_a_failure_is_taken_first() -> None:
    async def run() -> None:
        exchange = Exchange([GenerateRequest("0-a", "m", TextPrompt("x"), SamplingParameters())], lambda exchange: None)
        exchange.deliver(0, output("a", [1]))
        exchange.fail(ErrorInfo("broken", 500))
        assert not exchange.finished
        assert [one.text for _, one in await exchange.take()] == ["a"]
        with pytest.raises(RequestError, match="broken"):
            await exchange.take()

    asyncio.run(run())


def test_a_silent_stream_is_kept_alive(serve: Any) -> None:
    served: Served = serve(sse_keepalive_s=0.01)
    served.ring.silent = True

    async def run() -> str:
        async with served.client() as client:
            call = asyncio.create_task(client.post("/v1/chat/completions", json=chat_body(stream=True)))
            async with asyncio.timeout(60):
                while not served.ring.requests:
                    await asyncio.sleep(0)
                await asyncio.sleep(0.03)
                served.front.in_flight.sweep()
                await asyncio.sleep(0.03)
                served.front.in_flight.sweep()
                await settle()
            served.ring.play(served.ring.requests[0])
            return (await call).text

    text = asyncio.run(run())
    assert text.count(": keep-alive\n\n") == 2 and text.endswith("data: [DONE]\n\n")


def test_logs_show_requests_and_answers_as_json(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    served: Served = serve(log_requests=True)
    served.ring.words = ["line\n", "forged"]
    with caplog.at_level(logging.INFO):
        served.chat(messages=[{"role": "user", "content": "a\nERROR b"}])
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("http_frontend")]
    assert len(lines) == 2 and not any("\n" in line for line in lines)
    assert r"a\nERROR b" in lines[0] and r"line\nforged" in lines[1]


def test_nothing_is_logged_without_the_flag(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        served.chat()
    assert not [record for record in caplog.records if record.name.startswith("http_frontend")]


def one_exchange() -> Exchange:
    return Exchange([GenerateRequest("0-a", "m", TextPrompt("x"), SamplingParameters())], lambda exchange: None)


def test_outputs_are_written_where_they_come_in_and_an_end_wakes_the_task() -> None:
    async def run() -> None:
        exchange = one_exchange()
        written: list[str] = []
        willing = True

        def at_once(batch: Batch) -> bool:
            if willing:
                written.extend(one.text for _, one in batch)
            return willing

        taking = asyncio.create_task(exchange.take(at_once))
        await asyncio.sleep(0)
        for text in "ab":
            exchange.deliver(0, output(text, [1]))
            exchange.wake()
        await asyncio.sleep(0)
        assert written == ["a", "b"] and not taking.done()
        willing = False
        exchange.deliver(0, output("c", [3]))
        exchange.wake()
        assert [one.text for _, one in await taking] == ["c"]
        willing = True
        taking = asyncio.create_task(exchange.take(at_once))
        await asyncio.sleep(0)
        exchange.deliver(0, output("d", [4], finish=Finish("stop")))
        exchange.wake()
        assert [one.text for _, one in await taking] == ["d"] and written == ["a", "b"]
        exchange.deliver(0, output("e", [5]))
        exchange.wake()  # nobody waits: the next who takes gets it
        assert [one.text for _, one in await exchange.take(at_once)] == ["e"]

    asyncio.run(run())


def test_what_fails_while_writing_fails_the_call_alone() -> None:
    async def run() -> None:
        exchange = one_exchange()

        def at_once(batch: Batch) -> bool:
            raise ValueError("no such frame")

        taking = asyncio.create_task(exchange.take(at_once))
        await asyncio.sleep(0)
        exchange.deliver(0, output("a", [1]))
        exchange.wake()
        with pytest.raises(ValueError, match="no such frame"):
            await taking

    asyncio.run(run())
