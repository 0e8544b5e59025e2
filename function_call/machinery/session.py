"""One answer being read: its reader, its events so far, and the request that it answers."""

import secrets
import string
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from function_call.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from function_call.machinery.reader import CutShort, Reader, Step, Unreadable

TextKind = type[ContentDelta] | type[ReasoningDelta] | type[ToolCallArguments]
IdStyle = Literal["openai", "mistral", "kimi_k2", "kimi_k3"]
ALPHANUMERIC = string.ascii_letters + string.digits


@dataclass(frozen=True)
class ToolSet:
    """Names and parameter schemas of the request's function tools."""

    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]] | None) -> "ToolSet":
        """From OpenAI tool objects; what is no function tool is left out."""
        schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools or ():
            function = tool.get("function") if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                schema = function.get("parameters")
                schemas[function["name"]] = schema if isinstance(schema, Mapping) else {}
        return cls(schemas)

    def __contains__(self, name: object) -> bool:
        return name in self.schemas

    def schema(self, name: str) -> Mapping[str, Any]:
        return self.schemas.get(name, {})


@dataclass(frozen=True)
class SessionOptions:
    drop_unknown: bool = False
    id_style: IdStyle = "openai"
    earlier_calls: int = 0
    """Tool calls before this answer in the conversation: ids of the kimi formats count on from it."""


class EventSink:
    """Events in order, adjacent pieces of the same kind joined until they are taken."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._kind: tuple[TextKind, int] | None = None
        self._parts: list[str] = []

    def add(self, event: Event) -> None:
        self._flush()
        self._events.append(event)

    def text(self, kind: TextKind, part: str, index: int = -1) -> None:
        if self._kind != (kind, index):
            self._flush()
            self._kind = (kind, index)
        self._parts.append(part)

    def take(self) -> list[Event]:
        self._flush()
        events, self._events = self._events, []
        return events

    def _flush(self) -> None:
        if self._kind is None:
            return
        kind, index = self._kind
        joined = "".join(self._parts)
        self._kind = None
        self._parts = []
        if not joined:
            return
        if index >= 0:
            self._events.append(ToolCallArguments(index, joined))
        else:
            self._events.append(ReasoningDelta(joined) if kind is ReasoningDelta else ContentDelta(joined))


class ContentWriter:
    """Content on its way out. Blanks at the end wait for what follows: between content and a call they are framing."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._blanks: list[str] = []
        self.written = False

    def write(self, text: str) -> None:
        body = text.rstrip()
        if body:
            for blanks in self._blanks:
                self._sink.text(ContentDelta, blanks)
            self._sink.text(ContentDelta, body)
            self._blanks = []
            self.written = True
        if len(body) < len(text):
            self._blanks.append(text[len(body) :])

    def drop_blanks(self) -> str:
        """What was held, for the case that it has to be given back."""
        dropped = "".join(self._blanks)
        self._blanks = []
        return dropped

    def release(self) -> None:
        for blanks in self._blanks:
            self._sink.text(ContentDelta, blanks)
        self._blanks = []


class Session:
    """What a format reads from and writes to. At most one call is open at a time."""

    def __init__(self, sink: EventSink, tools: ToolSet, options: SessionOptions) -> None:
        self.reader = Reader()
        self.tools = tools
        self.output = ContentWriter(sink)
        self.calls = 0
        """Calls begun."""
        self.completed = 0
        self.open_name: str | None = None
        self._sink = sink
        self._options = options
        self._dropping = False
        self._blanks_before = ""
        self._ids: set[str] = set()

    def content(self, text: str) -> None:
        self.output.write(text)

    def discard(self, text: str) -> None:
        """For text that is neither content nor part of a call."""

    def start(self, name: str, model_id: str | None = None) -> None:
        """A call begins; `model_id` is the id that the model itself wrote, if it is fit for use."""
        self._blanks_before = self.output.drop_blanks()
        self.open_name = name
        self._dropping = self._options.drop_unknown and name not in self.tools
        if self._dropping:
            return
        identifier = model_id if model_id and model_id not in self._ids else self._new_id(name)
        self._ids.add(identifier)
        self._sink.add(ToolCallStart(self.calls, identifier, name))
        self.calls += 1

    def arguments(self, fragment: str) -> None:
        if not self._dropping:
            self._sink.text(ToolCallArguments, fragment, self.calls - 1)

    def end(self) -> None:
        """The open call is complete; what is unreadable from here on begins here."""
        self._close(complete=True)
        if self.reader.recording:
            self.reader.record()

    def attempt(self, block: Step[None], opening: str = "") -> Step[bool]:
        """Runs a block whose opening has been read. If it is unreadable, its text since the last whole call is content.

        The one exception is a call that was begun and cut by the token limit: its half stays a half.
        """
        self.reader.record(opening)
        try:
            yield from block
        except Unreadable as error:
            begun = self.open_name is not None
            text = self.reader.recorded()
            if begun:
                self._close(complete=False)
                text = self._blanks_before + text
            if not (begun and self.reader.cut and isinstance(error, CutShort)):
                self.content(text)
            return False
        self.reader.recorded()
        return True

    def _close(self, complete: bool) -> None:
        if not self._dropping:
            self._sink.add(ToolCallEnd(self.calls - 1, complete))
            self.completed += complete
        self.open_name = None
        self._dropping = False

    def _new_id(self, name: str) -> str:
        number = self._options.earlier_calls + self.calls
        while f"functions.{name}:{number}" in self._ids:
            number += 1
        match self._options.id_style:
            case "kimi_k2":
                return f"functions.{name}:{number}"
            case "kimi_k3":
                return f"{name}:{number}"
            case "mistral":
                return "".join(secrets.choice(ALPHANUMERIC) for _ in range(9))
        return f"call_{uuid.uuid4().hex[:24]}"
