"""Formats that write calls as JSON between markers."""

from dataclasses import dataclass
from functools import cached_property

from function_call.machinery.blocks import Layout, close_call, read_text
from function_call.machinery.format import Parse
from function_call.machinery.json_calls import CallShape, read_calls
from function_call.machinery.reader import CutShort, Markers, Step, Unreadable
from function_call.machinery.session import Session

PLAIN_CALL = CallShape()
STRAY_BRACKETS = "}] \t\r\n"


@dataclass(frozen=True)
class JsonBlocks:
    """`opens` JSON [`closes`]. The end of a call is the end of its JSON value: an end marker may stand inside a string."""

    opens: tuple[str, ...]
    closes: tuple[str, ...] = ()
    shape: CallShape = PLAIN_CALL
    stripped: tuple[str, ...] = ()
    opaque: tuple[str, str] | None = None
    bare_start: str = ""
    """Brackets that may open a call at the very start of the answer, without a marker."""
    after_open: tuple[str, ...] = ()
    """Markers one of which must follow the opening one, blanks between allowed."""
    prefix: str = ""
    """A word that is removed from the start of an answer."""

    @cached_property
    def layout(self) -> Layout:
        return Layout(
            self._block, opens=self.opens, stray_closes=self.closes, stripped=self.stripped, opaque=self.opaque
        )

    @cached_property
    def close_markers(self) -> Markers:
        return Markers(*self.closes)

    def parse(self, session: Session) -> Step[None]:
        reader = session.reader
        if self.prefix:
            yield from reader.at(Markers(self.prefix))
        if self.bare_start:
            session.content((yield from reader.skip_blanks()))
            character = yield from reader.peek()
            if character and character in self.bare_start:
                yield from session.attempt(read_calls(session, bare(self.shape)))
        yield from read_text(session, self.layout)

    def _block(self, session: Session, marker: str) -> Step[None]:
        reader = session.reader
        if self.after_open:
            yield from reader.skip_blanks()
            if not (yield from reader.at(Markers(*self.after_open))):
                raise Unreadable if (yield from reader.peek()) else CutShort
        yield from read_calls(session, self.shape)
        if self.closes:
            if (yield from reader.peek()) in ("}", "]"):
                yield from reader.skip(STRAY_BRACKETS)
            yield from close_call(session, self.close_markers)


def bare(shape: CallShape) -> CallShape:
    return CallShape(shape.name, shape.arguments, shape.keyed, bare=True, identifier=shape.identifier)


def json_blocks(opens: tuple[str, ...], closes: tuple[str, ...] = (), **more: object) -> Parse:
    """The `parse` of a format that is nothing but JSON blocks."""
    return JsonBlocks(opens, closes, **more).parse  # type: ignore[arg-type]
