"""Answers framed as messages with headers: `<|start|>role to=recipient<|channel|>name<|message|>body<|end|>`."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from function_call.machinery.reader import CutShort, Markers, Reader, Step, Unreadable

RECIPIENT = re.compile(r"\bto=([^\s<]+)")
TO = Markers("to=")
LONGEST_HEADER = 1024
Kind = Literal["reasoning", "content", "call"]
Write = Callable[[str], None]


@dataclass(frozen=True)
class Header:
    """`text` is the header as written, for giving it back; `channel` the first word after the channel marker."""

    text: str
    recipient: str
    channel: str


@dataclass(frozen=True)
class Messages:
    """`start` opens a message, `message` ends its header, `ends` end its body. `channel` divides the header, if there is one.
    `kind` says what a header makes of its message."""

    start: str
    message: str
    ends: tuple[str, ...]
    kind: Callable[[Header], Kind]
    channel: str = ""

    @cached_property
    def borders(self) -> Markers:
        """What ends a body, or unframed text."""
        return Markers(self.start, *self.ends, *self._channel)

    @cached_property
    def end_markers(self) -> Markers:
        return Markers(*self.ends)

    @cached_property
    def _header_stops(self) -> Markers:
        return Markers(self.message, *self._channel)

    @property
    def _channel(self) -> tuple[str, ...]:
        return (self.channel,) if self.channel else ()

    def read(
        self, reader: Reader, content: Write, reasoning: Write, call: Callable[[Header], Step[None]]
    ) -> Step[None]:
        """Messages one after another; text outside of any is content. `call` reads the body of a call and its end."""
        blanks = yield from reader.skip_blanks()
        marker = yield from reader.at(TO)
        if not marker:
            content(blanks)
            marker = yield from reader.until(self.borders, content)
        while marker:
            write = content
            if marker not in self.ends:
                header = yield from self._header(reader, marker, content)
                kind = self.kind(header) if header else "content"
                if header and kind == "call":
                    yield from call(header)
                elif kind == "reasoning":
                    write = reasoning
            marker = yield from reader.until(self.borders, write)

    def _header(self, reader: Reader, opening: str, content: Write) -> Step[Header | None]:
        """The header, or None if there is none; its text is then content. Markers that the answer's end cuts off say nothing."""
        reader.record(opening)
        try:
            header = yield from self._read_header(reader, opening)
        except CutShort:
            text = reader.recorded()
            if opening in TO:
                content(text)
            return None
        except Unreadable:
            content(reader.recorded())
            return None
        reader.recorded()
        return header

    def _read_header(self, reader: Reader, opening: str) -> Step[Header]:
        parts = [opening]
        channel = ""
        marker = opening
        while marker != self.message:
            text, stop = yield from reader.text_until(self._header_stops)
            parts.extend((text, stop))
            if sum(map(len, parts)) > LONGEST_HEADER:
                raise Unreadable
            if self.channel and marker == self.channel and not channel:
                channel = (text.split() or [""])[0]
            marker = stop
        whole = "".join(parts)
        found = RECIPIENT.search(whole)
        return Header(whole, found[1] if found else "", channel)


def harmony_kind(header: Header) -> Kind:
    if header.recipient and header.recipient not in ("assistant", "user", "all"):
        return "call"
    return "reasoning" if header.channel == "analysis" else "content"


def muse_kind(header: Header) -> Kind:
    if header.recipient == "self":
        return "reasoning"
    return "content" if header.recipient in ("", "user") else "call"


HARMONY = Messages("<|start|>", "<|message|>", ("<|end|>", "<|call|>", "<|return|>"), harmony_kind, "<|channel|>")
MUSE = Messages("<|start|>", "<|message|>", ("<|eom|>", "<|eot|>"), muse_kind)
