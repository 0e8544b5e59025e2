"""One choice of a chat: outputs in, events out; the events as deltas of a stream, or added up to a message."""

from collections.abc import Callable
from typing import Any

import msgspec

from function_call.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallStart, collect
from function_call.stream import OutputParser
from protocol.errors import RequestError
from protocol.outputs import Finish, TextOutput, TokenLogprob

_encode = msgspec.json.Encoder().encode


class ChatChoice:
    """`read` is the only way in, streaming or not."""

    def __init__(self, index: int, parser: OutputParser | None, shows_reasoning: bool) -> None:
        self.index = index
        self.finish: Finish | None = None
        self.finish_reason: str | None = None
        self._parser = parser
        self._shows_reasoning = shows_reasoning
        self._events: list[Event] = []
        self._logprobs: list[TokenLogprob] = []
        self._ids: list[bytes] = []

    def read(self, output: TextOutput) -> list[Event]:
        """What the new text means. At the end of the choice, `finish_reason` is set too."""
        parser, finish = self._parser, output.finish
        if parser is None:
            events: list[Event] = [ContentDelta(output.text)] if output.text else []
        else:
            events = parser.feed(output.text)
        if finish is not None:
            refuse_abort(finish)
            self.finish, self.finish_reason = finish, finish.reason
            if parser is not None:
                events += parser.finish(finish.reason)
                self.finish_reason = parser.finish_reason(finish.reason)
        if not self._shows_reasoning:
            events = [event for event in events if not isinstance(event, ReasoningDelta)]
        return events

    def keep(self, output: TextOutput) -> None:
        """Reads the output and keeps what it means for `message`."""
        self._events += self.read(output)
        self._logprobs += output.logprobs or ()
        self._ids.append(output.ids)

    @property
    def kept_logprobs(self) -> list[TokenLogprob]:
        return self._logprobs

    @property
    def kept_ids(self) -> bytes:
        return b"".join(self._ids)

    def message(self, reasoning_names: tuple[str, ...], prefix: str) -> dict[str, Any]:
        """The message that the kept events add up to."""
        whole = collect(self._events)
        content = prefix + (whole.content or "")
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not whole.calls else None,
            "refusal": None,
        }
        if whole.reasoning is not None:
            message |= dict.fromkeys(reasoning_names, whole.reasoning)
        if whole.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in whole.calls
            ]
        return message


def refuse_abort(finish: Finish) -> None:
    """An aborted answer is no answer: OpenAI's API has no word for it but an error."""
    if finish.reason == "abort":
        message = finish.error.message if finish.error is not None else "the request was aborted"
        raise RequestError(message, status=409, code="aborted")


def reasoning_writer(names: tuple[str, ...]) -> Callable[[str], bytes]:
    """Text of reasoning as a delta, under each of its names."""
    keys = [_encode(name) for name in names]

    def write(text: str) -> bytes:
        encoded = _encode(text)
        return b"{" + b",".join(key + b":" + encoded for key in keys) + b"}"

    return write


def deltas(events: list[Event], write_reasoning: Callable[[str], bytes]) -> list[bytes]:
    """The events as JSON deltas; texts that follow each other become one."""
    written: list[bytes] = []
    texts: list[str] = []
    kind: type[Event] | None = None

    def flush() -> None:
        if texts:
            text = "".join(texts)
            written.append(write_reasoning(text) if kind is ReasoningDelta else b'{"content":' + _encode(text) + b"}")
            texts.clear()

    for event in events:
        if isinstance(event, (ContentDelta, ReasoningDelta)):
            if type(event) is not kind:
                flush()
                kind = type(event)
            texts.append(event.text)
            continue
        flush()
        if isinstance(event, ToolCallStart):
            function = {"name": event.name, "arguments": ""}
            call = {"index": event.index, "id": event.id, "type": "function", "function": function}
            written.append(_encode({"tool_calls": [call]}))
        elif isinstance(event, ToolCallArguments):
            written.append(_encode({"tool_calls": [{"index": event.index, "function": {"arguments": event.fragment}}]}))
    flush()
    return written
