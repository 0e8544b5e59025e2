"""The loop of all formats: free text with blocks of calls in it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from function_call.machinery.reader import CutShort, Markers, Step, Unreadable
from function_call.machinery.session import Session

FENCE = "```"
Block = Callable[[Session, str], Step[None]]
"""Reads a call, or a block of them, whose opening marker has been consumed, up to and with its end marker."""


@dataclass(frozen=True)
class Layout:
    """Where calls stand. A group (`group_opens` ... `group_closes`) holds one or more calls, each opened by one of `opens`;
    `alone`: calls stand outside of a group too. A format without groups has `opens` only.

    `stripped` markers are removed from the text. Between `opaque` markers nothing is a call (thoughts that nobody has
    split off). `fences`: nothing is a call inside a Markdown code fence.
    """

    call: Block
    opens: tuple[str, ...] = ()
    group_opens: tuple[str, ...] = ()
    group_closes: tuple[str, ...] = ()
    alone: bool = True
    stray_closes: tuple[str, ...] = ()
    """End markers of single calls: one that comes late, after its call has been read, is swallowed."""
    stripped: tuple[str, ...] = ()
    opaque: tuple[str, str] | None = None
    fences: bool = False
    follows: tuple[str, re.Pattern[str]] | None = None
    """(opening, what the character after it must be), for an opening that ordinary text is full of (`[`)."""
    other_body: Block | None = None
    """What a group may hold in place of opened calls (bare JSON)."""
    text_after_call: bool = field(default=True)
    """False: free text after the first call is dropped, as the format's own engines do."""

    @cached_property
    def in_text(self) -> Markers:
        return self._text_markers(self.opens if self.alone else ())

    @cached_property
    def after_unclosed(self) -> Markers:
        """After a group without its end: its further calls may still come."""
        return self._text_markers(self.opens)

    def _text_markers(self, opens: tuple[str, ...]) -> Markers:
        opaque = (self.opaque[0],) if self.opaque else ()
        fence = (FENCE,) if self.fences else ()
        closes = (*self.group_closes, *self.stray_closes)
        return Markers(*self.group_opens, *opens, *closes, *self.stripped, *opaque, *fence)

    @cached_property
    def call_opens(self) -> Markers:
        return Markers(*self.opens)

    @cached_property
    def call_opens_or_close(self) -> Markers:
        return Markers(*self.opens, *self.group_closes)

    @cached_property
    def opaque_close(self) -> Markers:
        return Markers(self.opaque[1]) if self.opaque else Markers()


def read_text(session: Session, layout: Layout) -> Step[None]:
    """The whole answer: text is content, blocks are calls or, if they can't be read, content too."""
    reader = session.reader
    fenced = False
    unclosed = False
    while True:
        write = session.content if layout.text_after_call or not session.calls else session.discard
        marker = yield from reader.until(layout.after_unclosed if unclosed else layout.in_text, write)
        if not marker:
            return
        if marker in layout.stripped:
            continue
        if layout.fences and marker == FENCE:
            fenced = not fenced
            session.content(marker)
        elif fenced:
            session.content(marker)
        elif marker in layout.group_closes or marker in layout.stray_closes:
            if not unclosed:
                session.content(marker)
            unclosed = False
        elif layout.opaque and marker == layout.opaque[0]:
            session.content(marker)
            session.content((yield from reader.until(layout.opaque_close, session.content)))
        elif layout.follows and marker == layout.follows[0] and not layout.follows[1].match((yield from reader.peek())):
            session.content(marker)
        else:
            block = read_group(session, layout) if marker in layout.group_opens else layout.call(session, marker)
            read = yield from session.attempt(block, marker)
            unclosed = read and reader.last_marker not in (layout.group_closes or layout.stray_closes)


def read_group(session: Session, layout: Layout) -> Step[None]:
    """The inside of a group. It ends at its end marker, or where something else stands than a call: text after a missing end."""
    reader = session.reader
    markers = layout.call_opens
    calls = 0
    while True:
        yield from reader.skip_blanks()
        marker = yield from reader.at(markers)
        if marker in layout.opens:
            yield from layout.call(session, marker)
        elif marker:
            return
        elif layout.other_body is not None and (yield from reader.peek()) in ("{", "["):
            yield from layout.other_body(session, "")
        elif calls:
            return
        else:
            raise Unreadable if (yield from reader.peek()) else CutShort
        calls += 1
        markers = layout.call_opens_or_close


def close_call(session: Session, closes: Markers) -> Step[None]:
    """After a whole call: consumes its end marker if it stands here, blanks before it included."""
    blanks = yield from session.reader.skip_blanks()
    if not (yield from session.reader.at(closes)) and (yield from session.reader.peek()):
        session.content(blanks)
