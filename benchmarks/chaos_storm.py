"""Clients that send a request and are gone: at any moment, in any phase of it."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from benchmarks.chaos_load import Question

AT_ONCE = 32
LONGEST_STAY_S = 0.4


async def storm(url: str, questions: Sequence[Question], count: int, seed: int) -> None:
    """`count` requests, streaming or not, whose connections are cut after up to LONGEST_STAY_S: while they are sent,
    queued, tokenised, compiled, computed or answered."""
    chance = random.Random(seed)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(question: Question, streaming: bool, stay_s: float, share: float) -> None:
        async with gate:
            await _visit(url, question, streaming, stay_s, share)

    visits = [
        one(
            chance.choice(questions),
            chance.random() < 0.5,
            LONGEST_STAY_S * chance.random() ** 3,  # mostly short: the early phases are short, too
            1.0 if chance.random() < 0.9 else chance.random(),
        )
        for _ in range(count)
    ]
    await asyncio.gather(*visits)


async def _visit(url: str, question: Question, streaming: bool, stay_s: float, share: float) -> None:
    """Sends that share of a request, and leaves after a while without a word."""
    body = msgspec.json.encode(question.body | {"stream": streaming})
    head = f"POST {question.path} HTTP/1.1\r\nhost: chaos\r\ncontent-type: application/json\r\n"
    message = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
    address = urlsplit(url)
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(message[: max(1, int(len(message) * share))])
        await asyncio.sleep(stay_s)
        writer.transport.abort()
