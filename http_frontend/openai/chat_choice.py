"""One choice of a chat: outputs in, events out; the events as deltas of a stream, or added up to a message."""

from dataclasses import dataclass
from typing import Any

from function_call.events import ContentDelta, Event, ReasoningDelta, collect
from function_call.stream import OutputParser
from http_frontend.openai.deltas import DeltaWriter, whole_calls
from protocol.errors import RequestError
from protocol.outputs import Finish, TextOutput, TokenLogprob


@dataclass(frozen=True)
class MessageStyle:
    """How a message is written: names of the reasoning field, tools of the custom kind, the older function_call."""

    reasoning_names: tuple[str, ...]
    shows_reasoning: bool = True
    custom_tools: frozenset[str] = frozenset()
    legacy_calls: bool = False
    echo: str = ""


class ChatChoice:
    """`read` is the only way in, streaming or not."""

    def __init__(self, index: int, parser: OutputParser | None, style: MessageStyle) -> None:
        self.index = index
        self.deltas = DeltaWriter(style.reasoning_names, style.custom_tools, style.legacy_calls)
        self.finish: Finish | None = None
        self.finish_reason: str | None = None
        self._parser = parser
        self._style = style
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
                if self.finish_reason == "tool_calls" and self._style.legacy_calls:
                    self.finish_reason = "function_call"
        if not self._style.shows_reasoning:
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

    def message(self) -> dict[str, Any]:
        """The message that the kept events add up to."""
        whole, style = collect(self._events), self._style
        content = style.echo + (whole.content or "")
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not whole.calls else None,
            "refusal": None,
        }
        if whole.reasoning is not None:
            message |= dict.fromkeys(style.reasoning_names, whole.reasoning)
        if whole.calls:
            message |= whole_calls(whole.calls, style.custom_tools, style.legacy_calls)
        return message


def refuse_abort(finish: Finish) -> None:
    """An aborted answer is no answer: OpenAI's API has no word for it but an error."""
    if finish.reason == "abort":
        message = finish.error.message if finish.error is not None else "the request was aborted"
        raise RequestError(message, status=499, code="aborted")
