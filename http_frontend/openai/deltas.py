"""The events of one choice as JSON deltas of a stream, and the calls of a whole answer, in the same words."""

from typing import Any

import msgspec

from function_call.custom_tools import CustomInput
from function_call.events import (
    CollectedCall,
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

_encode = msgspec.json.Encoder().encode


class DeltaWriter:
    """Texts that follow each other become one delta; each event of a call is one of its own."""

    def __init__(self, reasoning_names: tuple[str, ...], custom: frozenset[str], legacy: bool) -> None:
        self._reasoning_keys = [_encode(name) + b":" for name in reasoning_names]
        self._custom = custom
        self._legacy = legacy
        self._inputs: dict[int, StreamedInput] = {}

    def write(self, events: list[Event]) -> list[bytes]:
        if len(events) == 1 and type(events[0]) is ContentDelta:
            return [b'{"content":' + _encode(events[0].text) + b"}"]
        written: list[bytes] = []
        texts: list[str] = []
        kind: type[Event] | None = None
        for event in events:
            if type(event) is not kind and texts:
                written.append(self._text(kind, "".join(texts)))
                texts = []
            kind = type(event)
            if isinstance(event, (ContentDelta, ReasoningDelta)):
                texts.append(event.text)
            elif (call := self._call(event)) is not None:
                written.append(_encode(call))
        if texts:
            written.append(self._text(kind, "".join(texts)))
        return written

    def _text(self, kind: type[Event] | None, text: str) -> bytes:
        encoded = _encode(text)
        if kind is ReasoningDelta:
            return b"{" + b",".join(key + encoded for key in self._reasoning_keys) + b"}"
        return b'{"content":' + encoded + b"}"

    def _call(self, event: Event) -> dict[str, Any] | None:
        match event:
            case ToolCallStart(index, call_id, name):
                if self._legacy:
                    return {"function_call": {"name": name, "arguments": ""}}
                if name in self._custom:
                    self._inputs[index] = StreamedInput()
                    entry: dict[str, Any] = {"type": "custom", "custom": {"name": name, "input": ""}}
                else:
                    entry = {"type": "function", "function": {"name": name, "arguments": ""}}
                return {"tool_calls": [{"index": index, "id": call_id} | entry]}
            case ToolCallArguments(index, fragment):
                if self._legacy:
                    return {"function_call": {"arguments": fragment}}
                if index in self._inputs:
                    return _input_delta(index, self._inputs[index].feed(fragment))
                return {"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}
            case ToolCallEnd(index, complete) if index in self._inputs:
                given = self._inputs.pop(index)
                return _input_delta(index, given.rest() if complete else "")
        return None


class StreamedInput:
    """A custom tool's input, which travels as JSON inside."""

    def __init__(self) -> None:
        self._reader = CustomInput()
        self._arguments: list[str] = []
        self._begun = False

    def feed(self, fragment: str) -> str:
        """The piece of the input that this makes known."""
        text = self._reader.feed(fragment)
        self._begun = self._begun or bool(text)
        self._arguments.append(fragment)
        return text

    def rest(self) -> str:
        """At the end: arguments that are no such object are the input themselves."""
        return "" if self._begun else custom_input("".join(self._arguments))


def _input_delta(index: int, text: str) -> dict[str, Any] | None:
    return {"tool_calls": [{"index": index, "custom": {"input": text}}]} if text else None


def whole_calls(calls: tuple[CollectedCall, ...], custom: frozenset[str], legacy: bool) -> dict[str, Any]:
    """The fields of a whole message that tell of calls."""
    if legacy:
        return {"function_call": {"name": calls[0].name, "arguments": calls[0].arguments}}
    return {
        "tool_calls": [
            {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": custom_input(call.arguments)}}
            if call.name in custom
            else {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    }


def custom_input(arguments: str) -> str:
    """The text inside `{"input": ...}`; arguments that were cut, or are no such object, as they are."""
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
