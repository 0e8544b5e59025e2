"""Questions to the processes behind: one answer to a tokenisation or a render, several to a control message."""

import asyncio
import uuid
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from http_frontend.in_flight import Sender
from protocol.control import ControlReply, ControlRequest, Role
from protocol.errors import ErrorInfo, RequestError
from protocol.outputs import Detokenized, Refused, Rendered, Tokenized
from protocol.requests import PeekCache

ANSWER_TIMEOUT_S = 30.0
NOBODY = -1

Answer = Rendered | Tokenized | Detokenized


class Questions:
    """Correlates answers with whoever waits for them; a late or unasked answer is dropped."""

    def __init__(self, worker: int, sender: Sender) -> None:
        self._worker = worker
        self._sender = sender
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        self._asked: dict[str, tuple[int, msgspec.Struct]] = {}
        self._replies: dict[str, list[ControlReply]] = {}
        self._news: dict[str, asyncio.Event] = {}

    @property
    def waiting(self) -> int:
        """Questions without an answer so far."""
        return len(self._asked)

    def new_id(self) -> str:
        return f"{self._worker}-q{uuid.uuid4().hex}"

    async def ask(self, question_id: str, message: msgspec.Struct, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """Sends a message to a tokenizer manager and waits for its answer; RequestError if refused or late. One that dies
        over it is a pause."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[question_id] = answer
        try:
            self._send(question_id, message)
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            raise RequestError.from_info(_no_answer("the tokenizer manager did not answer in time")) from None
        finally:
            del self._answers[question_id]
            self._asked.pop(question_id, None)

    def _send(self, question_id: str, message: msgspec.Struct) -> None:
        tokenizers = self._sender.peers("tokenizer")
        index = tokenizers[zlib.crc32(question_id.encode()) % len(tokenizers)] if tokenizers else NOBODY
        self._asked[question_id] = (index, message)
        if tokenizers:
            self._sender.send("tokenizer", index, message)

    def on_peer_change(self) -> None:
        """Asks again what was asked of a tokenizer manager that is gone; an answer too many is dropped."""
        live = self._sender.peers("tokenizer")
        for question_id, (index, message) in list(self._asked.items()):
            if index not in live:
                self._send(question_id, message)

    async def ask_all(
        self, what: str, arguments: dict[str, Any], roles: Sequence[Role], timeout_s: float
    ) -> tuple[list[ControlReply], list[str]]:
        """Sends a control message round the ring: (replies, names of the processes that did not answer in time).

        One live tokenizer manager passes it on; every live scheduler is expected to answer, and that tokenizer manager
        where `roles` has it.
        """
        tokenizers = self._sender.peers("tokenizer")
        expected: set[tuple[Role, int]] = {("scheduler", index) for index in self._sender.peers("scheduler")}
        if not tokenizers or not expected:
            return [], ["scheduler" if tokenizers else "tokenizer"]
        if "tokenizer" in roles:
            expected.add(("tokenizer", tokenizers[0]))
        question_id = self.new_id()
        request = ControlRequest(question_id, self._worker, what, arguments)  # type: ignore[arg-type]
        replies = await self._gather(question_id, tokenizers[0], request, expected, timeout_s)
        silent = expected - _who(replies)
        return replies, sorted(f"{role} {index}" for role, index in silent)

    async def peek(self, prompt_ids: bytes, namespace: str, timeout_s: float) -> int | None:
        """How many tokens of the prompt the prefix cache holds on the replica that it would go to; None without an answer."""
        tokenizers, detokenizers = self._sender.peers("tokenizer"), self._sender.peers("detokenizer")
        if not (tokenizers and detokenizers and self._sender.peers("scheduler")):
            return None
        question_id = self.new_id()
        request = PeekCache(question_id, detokenizers[0], prompt_ids, namespace)
        replies = await self._gather(question_id, tokenizers[0], request, None, timeout_s)
        return int(replies[0].payload.get("cached_tokens", 0)) if replies else None

    async def _gather(
        self,
        question_id: str,
        tokenizer: int,
        request: msgspec.Struct,
        expected: set[tuple[Role, int]] | None,
        timeout_s: float,
    ) -> list[ControlReply]:
        """Replies until all that are expected (None: any one) have come, or the time is over."""
        replies: list[ControlReply] = []
        self._replies[question_id] = replies
        news = self._news[question_id] = asyncio.Event()
        try:
            self._sender.send("tokenizer", tokenizer, request)
            async with asyncio.timeout(timeout_s):
                while not (replies if expected is None else expected <= _who(replies)):
                    await news.wait()
                    news.clear()
        except TimeoutError:
            pass
        finally:
            del self._replies[question_id], self._news[question_id]
        return replies

    def on_answer(self, message: Answer) -> None:
        waiting = self._answers.get(message.request_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def on_refused(self, refused: Refused) -> None:
        waiting = self._answers.get(refused.request_id)
        if waiting is not None and not waiting.done():
            waiting.set_exception(RequestError.from_info(refused.error))

    def on_reply(self, reply: ControlReply) -> None:
        replies = self._replies.get(reply.correlation_id)
        if replies is not None:
            replies.append(reply)
            self._news[reply.correlation_id].set()


def _who(replies: list[ControlReply]) -> set[tuple[Role, int]]:
    return {(reply.role, reply.index) for reply in replies}


def _no_answer(message: str) -> ErrorInfo:
    return ErrorInfo(message, 503, "service_unavailable_error", code="unavailable", retry_after_s=1.0)
