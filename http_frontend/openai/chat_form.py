"""How a chat completion is written: chunks in OpenAI's order, or the one body that they add up to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from function_call.stream import OutputParser
from http_frontend.contract.review import Review
from http_frontend.exchange import Batch
from http_frontend.generation import by_choice, error_frame
from http_frontend.openai.chat_choice import ChatChoice, MessageStyle
from http_frontend.openai.logprobs import chat_logprobs, prompt_logprobs
from http_frontend.usage import Tally
from protocol.errors import ErrorInfo
from protocol.ids import unpack_ids
from protocol.outputs import Admitted

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class ChatShape:
    """What the request asked of the answer's form."""

    id: str
    model: str
    created: int
    fingerprint: str
    choices: int
    copies: int
    include_usage: bool
    continuous_usage: bool
    ids_as_tokens: bool
    returns_ids: bool
    returns_prompt_ids: bool
    returns_adjustments: bool
    style: MessageStyle
    new_parser: Callable[[Admitted], OutputParser | None]


class ChatForm:
    """The chunks' constant parts are encoded once; a token costs the encoding of its delta and a join."""

    def __init__(self, shape: ChatShape, review: Review) -> None:
        self._shape = shape
        self._review = review
        self._tally = Tally(shape.copies)
        self._choices: list[ChatChoice] = []
        self._prompt_ids: bytes | None = None
        self._prompt_logprobs: list[dict[str, Any] | None] | None = None
        head = _encode(self._envelope("chat.completion.chunk"))[:-1]
        self._head = b"data: " + head + b',"choices":[{"index":'
        self._no_usage = b',"usage":null}\n\n' if shape.include_usage else b"}\n\n"

    def admit(self, admitted: list[Admitted]) -> None:
        self._tally.admit(admitted)
        self._prompt_ids = admitted[0].prompt_ids
        shape = self._shape
        self._choices = [
            ChatChoice(index, shape.new_parser(admitted[0]), shape.style) for index in range(shape.choices)
        ]

    # The stream

    def opening(self) -> bytes:
        frames = [self._chunk(choice.index, b'{"role":"assistant","content":""}') for choice in self._choices]
        if self._shape.returns_prompt_ids and self._prompt_ids is not None:
            ids = _encode({"prompt_token_ids": unpack_ids(self._prompt_ids)})[1:-1]
            frames[0] = frames[0][:-3] + b"," + ids + b"}\n\n"
        if self._shape.style.echo:
            delta = _encode({"content": self._shape.style.echo})
            frames += [self._chunk(choice.index, delta) for choice in self._choices]
        return b"".join(frames)

    def frames(self, batch: Batch) -> bytes:
        frames: list[bytes] = []
        self._count(batch)
        for index, _, output in by_choice(batch, self._shape.choices, self._shape.copies):
            choice = self._choices[index]
            written = choice.deltas.write(choice.read(output))
            logprobs, extra = b"null", b""
            if output.logprobs is not None:
                content = chat_logprobs(output.logprobs, self._shape.ids_as_tokens)
                logprobs = _encode({"content": content, "refusal": None}) if content else b"null"
            if self._shape.returns_ids:
                extra = b',"token_ids":' + _encode(unpack_ids(output.ids))
            if not written and output.ids and (output.logprobs or extra):
                # The parser holds the text back, but these tokens' logprobs belong to this moment.
                written.append(b'{"content":""}')
            for delta in written:
                frames.append(self._chunk(index, delta, logprobs, b"null" + extra))
                logprobs, extra = b"null", b""
            if choice.finish is not None:
                frames.append(self._chunk(index, b"{}", b"null", _encode(choice.finish_reason) + _stop_fields(choice)))
        return b"".join(frames)

    def closing(self) -> bytes:
        shape = self._shape
        if not shape.include_usage and not shape.returns_adjustments:
            return b""
        last = self._envelope("chat.completion.chunk") | {"choices": []}
        if shape.include_usage:
            last["usage"] = self._tally.usage()
        if shape.returns_adjustments:
            last["adjustments"] = self._review.listed()
        return b"data: " + _encode(last) + b"\n\n"

    def error(self, info: ErrorInfo) -> bytes:
        return error_frame(info)

    def _chunk(self, index: int, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        tail = self._no_usage
        if self._shape.continuous_usage:
            tail = b',"usage":' + _encode(self._tally.usage()) + b"}\n\n"
        middle = (b"%d" % index, b',"delta":', delta, b',"logprobs":', logprobs, b',"finish_reason":', finish, b"}]")
        return b"".join((self._head, *middle, tail))

    # The whole

    def collect(self, batch: Batch) -> None:
        self._count(batch)
        for index, _, output in by_choice(batch, self._shape.choices, self._shape.copies):
            if output.prompt_logprobs is not None:
                self._prompt_logprobs = prompt_logprobs(output.prompt_logprobs)
            self._choices[index].keep(output)

    def body(self) -> bytes:
        shape = self._shape
        answer = self._envelope("chat.completion") | {
            "choices": [self._whole_choice(choice) for choice in self._choices],
            "usage": self._tally.usage(),
        }
        if self._prompt_logprobs is not None:
            answer["prompt_logprobs"] = self._prompt_logprobs
        if shape.returns_prompt_ids and self._prompt_ids is not None:
            answer["prompt_token_ids"] = unpack_ids(self._prompt_ids)
        if shape.returns_adjustments:
            answer["adjustments"] = self._review.listed()
        return _encode(answer)

    def _whole_choice(self, choice: ChatChoice) -> dict[str, Any]:
        shape = self._shape
        finish = choice.finish
        assert finish is not None
        entries = choice.kept_logprobs
        logprobs = {"content": chat_logprobs(entries, shape.ids_as_tokens), "refusal": None} if entries else None
        described: dict[str, Any] = {
            "index": choice.index,
            "message": choice.message(),
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": finish.matched,
            "matched_stop": finish.matched,
        }
        return described | ({"token_ids": unpack_ids(choice.kept_ids)} if shape.returns_ids else {})

    def _envelope(self, kind: str) -> dict[str, Any]:
        shape = self._shape
        return {
            "id": shape.id,
            "object": kind,
            "created": shape.created,
            "model": shape.model,
            "system_fingerprint": shape.fingerprint,
        }

    def _count(self, batch: Batch) -> None:
        for position, output in batch:
            self._tally.count(position, output)
            if output.adjustments:
                self._review.note(output.adjustments)


def _stop_fields(choice: ChatChoice) -> bytes:
    """What ended the choice, under both engines' names."""
    assert choice.finish is not None
    matched = _encode(choice.finish.matched)
    return b',"stop_reason":' + matched + b',"matched_stop":' + matched
