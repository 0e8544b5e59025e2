"""Reasoning between an opening and a closing marker."""

from dataclasses import dataclass
from functools import cached_property

from function_call.machinery.reader import Markers, Step
from function_call.reasoning.splitter import Split


@dataclass(frozen=True)
class Tags:
    """`pairs` of markers; a block that the prompt has opened may end with any of the closing ones.

    `tool_opens` end an unclosed block: that marker and all after it are for the tool format. `lifts` is a tool block that
    may stand inside reasoning without ending it. `stripped` markers frame the answer and are removed.
    """

    pairs: tuple[tuple[str, str], ...]
    tool_opens: tuple[str, ...] = ()
    stripped: tuple[str, ...] = ()
    lifts: tuple[str, str] | None = None
    repeats: bool = False
    """Several blocks, with text between."""
    stray_close: bool = False
    """A closing marker that nothing has opened is removed, once and before any block."""
    stray_only_leads: bool = False
    """... and only at the very start."""

    @cached_property
    def opens(self) -> Markers:
        return Markers(*(opening for opening, _ in self.pairs))

    @cached_property
    def closes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(closing for _, closing in self.pairs))

    def split(self, split: Split) -> Step[None]:
        reader = split.reader
        opening = ""
        if split.prompt_opened:
            blanks = yield from reader.skip_blanks()
            opening = yield from reader.at(self.opens)
            split.marker(opening)
            split.reasoning(blanks)
            yield from self._block(split, "")
        else:
            if self.stray_only_leads:
                blanks = yield from reader.skip_blanks()
                if not (yield from reader.at(Markers(*self.closes))):
                    split.rest(blanks)
            opening = yield from self._text(split, may_open=True)
            if not opening:
                return
            yield from self._block(split, opening)
        while opening := (yield from self._text(split, may_open=self.repeats)):
            yield from self._block(split, opening)

    def _text(self, split: Split, may_open: bool) -> Step[str]:
        """Content up to the next opening marker, which is returned; "" at the end."""
        strays = self.closes if may_open and self.stray_close else ()
        opens = self.opens.all if may_open else ()
        markers = Markers(*opens, *strays, *self.stripped)
        while True:
            marker = yield from split.reader.until(markers, split.rest)
            if not marker:
                return ""
            split.marker(marker)
            if marker in opens:
                return marker
            if marker in strays:
                markers = Markers(*opens, *self.stripped)

    def _block(self, split: Split, opening: str) -> Step[None]:
        """The inside of a block and its end."""
        closes = tuple(closing for start, closing in self.pairs if start == opening) or self.closes
        lift = self.lifts[:1] if self.lifts else ()
        markers = Markers(*closes, *self.tool_opens, *lift)
        while True:
            marker = yield from split.reader.until(markers, split.reasoning)
            if self.lifts and marker == self.lifts[0]:
                split.lift(marker)
                split.lift((yield from split.reader.until(Markers(self.lifts[1]), split.lift)))
                continue
            if marker in self.tool_opens:
                split.reader.unread(marker)
            elif marker:
                split.marker(marker)
            if marker:
                split.close_reasoning()
            return
