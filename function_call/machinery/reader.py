"""A text that grows, read by generators: a `yield` means "more text is needed".

A format is written as if the whole text were there. What it reads depends on the text alone, never on how it was cut,
because every primitive waits until it can tell. None of them leaves more than a marker's length unread while it waits,
so the work per piece does not grow with what came before.
"""

import re
from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeVar

Result = TypeVar("Result")
Step = Generator[None, None, Result]

BLANKS = re.compile(r"\s*")
LONGEST_NAME = 256


class Unreadable(Exception):
    """The block that is being read is no call: its text is content. `at` is where a machine stopped in what it was fed."""

    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.at = at


class CutShort(Unreadable):
    """The text ended inside the block."""


class Markers:
    """Fixed strings that a reader looks for. None may stand inside another, or the first match would depend on the cut."""

    def __init__(self, *markers: str) -> None:
        self.all = tuple(dict.fromkeys(markers))
        for marker in self.all:
            for other in self.all:
                if marker != other and marker in other:
                    raise ValueError(f"marker {marker!r} stands inside {other!r}")
        self.pattern = re.compile("|".join(re.escape(m) for m in self.all) or r"(?!)")
        self._prefixes = frozenset(m[:n] for m in self.all for n in range(1, len(m)))
        self._longest = max((len(m) for m in self.all), default=1) - 1

    def __contains__(self, marker: object) -> bool:
        return marker in self.all

    def held(self, text: str, start: int) -> int:
        """How many characters at the end of `text[start:]` may be the beginning of a marker."""
        for length in range(min(self._longest, len(text) - start), 0, -1):
            if text[len(text) - length :] in self._prefixes:
                return length
        return 0

    def could_begin(self, text: str) -> bool:
        """Whether `text` is a proper prefix of a marker."""
        return not text or text in self._prefixes

    @property
    def longest(self) -> int:
        return self._longest + 1


class Machine(Protocol):
    """Something that is fed characters and knows when it has had enough (a JSON value, a quoted string)."""

    done: bool

    def feed(self, text: str, start: int) -> int:
        """Takes what it can of `text[start:]` and returns the index after it; Unreadable if it can't be."""

    def finish(self) -> None:
        """The text ends here; `done` if that completes the value."""


class Reader:
    """The unread text. `cut` says, once ended, that the answer was cut (token limit) rather than finished."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._record: list[str] | None = None
        self.ended = False
        self.cut = False
        self.last_marker = ""
        """The marker that was consumed last: tells whether a block ended with its end marker."""
        self.work = 0
        """Characters looked at so far, again and again if need be: tests hold it to a multiple of the text's length."""

    def push(self, text: str) -> None:
        self.work += len(self._text) - self._at
        self._text = self._text[self._at :] + text
        self._at = 0

    def close(self, cut: bool) -> None:
        self.ended = True
        self.cut = cut

    def record(self, opening: str = "") -> None:
        """From here on keep what is consumed, in case it has to be given back."""
        self._record = [opening]

    def recorded(self) -> str:
        """What was consumed since `record`; recording ends."""
        text = "".join(self._record or ())
        self._record = None
        return text

    @property
    def recording(self) -> bool:
        return self._record is not None

    def take(self, end: int) -> str:
        """Consumes up to index `end` of the buffer."""
        text = self._text[self._at : end]
        self._at = end
        self.work += 1 + len(text)
        if self._record is not None:
            self._record.append(text)
        return text

    def remaining(self) -> str:
        """Consumes everything that has arrived."""
        return self.take(len(self._text))

    def unread(self, text: str) -> None:
        """Puts back the marker that was consumed last."""
        self._at -= len(text)
        if self._record is not None:
            self._record.pop()

    def peek(self) -> Step[str]:
        """The next character, not consumed; "" at the end."""
        while self._at == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def next(self) -> Step[str]:
        """The next character, consumed; CutShort at the end."""
        character = yield from self.peek()
        if not character:
            raise CutShort
        return self.take(self._at + 1)

    def skip(self, characters: str) -> Step[str]:
        """Consumes a run of these characters (blanks: `skip_blanks`) and returns it."""
        run: list[str] = []
        while True:
            end = self._at
            while end < len(self._text) and self._text[end] in characters:
                end += 1
            run.append(self.take(end))
            if end < len(self._text) or self.ended:
                return "".join(run)
            yield

    def skip_blanks(self) -> Step[str]:
        run: list[str] = []
        while True:
            found = BLANKS.match(self._text, self._at)
            end = found.end() if found else self._at
            run.append(self.take(end))
            if end < len(self._text) or self.ended:
                return "".join(run)
            yield

    def word(self, pattern: re.Pattern[str], limit: int = LONGEST_NAME) -> Step[str]:
        """Consumes a run of characters that `pattern` (a character class, repeated) matches; Unreadable beyond `limit`."""
        run = ""
        while True:
            found = pattern.match(self._text, self._at, self._at + limit + 1 - len(run))
            run += self.take(found.end() if found else self._at)
            if len(run) > limit:
                raise Unreadable
            if self._at < len(self._text) or self.ended:
                return run
            yield

    def at(self, markers: Markers) -> Step[str]:
        """Consumes the marker that stands here and returns it; "" if none does."""
        while True:
            found = markers.pattern.match(self._text, self._at)
            self.work += min(len(self._text) - self._at, markers.longest)
            if found:
                return self._consume(found)
            if self.ended or len(self._text) - self._at >= markers.longest:
                return ""
            if not markers.could_begin(self._text[self._at :]):
                return ""
            yield

    def until(self, markers: Markers, write: Callable[[str], None]) -> Step[str]:
        """Passes the text before the first marker to `write` as it comes, consumes the marker and returns it; "" at the end."""
        while True:
            found = markers.pattern.search(self._text, self._at)
            self.work += (found.end() if found else len(self._text)) - self._at
            if found:
                if found.start() > self._at:
                    write(self.take(found.start()))
                return self._consume(found)
            held = 0 if self.ended else markers.held(self._text, self._at)
            if len(self._text) - held > self._at:
                write(self.take(len(self._text) - held))
            if self.ended:
                return ""
            yield

    def text_until(self, markers: Markers, limit: int = LONGEST_NAME) -> Step[tuple[str, str]]:
        """(text, marker): the text before the first marker. Unreadable if it is longer than `limit` (and just that much
        is consumed, whatever else has arrived), CutShort at the end."""
        parts: list[str] = []
        room = limit + 1
        while True:
            found = markers.pattern.search(self._text, self._at, self._at + room + markers.longest)
            self.work += min(len(self._text) - self._at, room + markers.longest)
            if found and found.start() - self._at < room:
                parts.append(self.take(found.start()))
                return "".join(parts), self._consume(found)
            free = len(self._text) - self._at - (0 if self.ended else markers.held(self._text, self._at))
            taken = min(free, room)
            room -= taken
            parts.append(self.take(self._at + taken))
            if not room:
                raise Unreadable
            if self.ended:
                raise CutShort
            yield

    def _consume(self, found: re.Match[str]) -> str:
        self.last_marker = self.take(found.end())
        return self.last_marker

    def drive(self, machine: Machine) -> Step[None]:
        """Feeds the machine until it is done; CutShort if the text ends first."""
        while True:
            if self._at < len(self._text):
                try:
                    self.take(machine.feed(self._text, self._at))
                except Unreadable as error:
                    self.take(max(error.at, self._at))
                    raise
            if machine.done:
                return
            if self.ended:
                machine.finish()
                if machine.done:
                    return
                raise CutShort
            yield

    def expect(self, characters: Sequence[str]) -> Step[str]:
        """Consumes one of these characters after blanks; Unreadable if another stands there."""
        yield from self.skip_blanks()
        character = yield from self.peek()
        if not character:
            raise CutShort
        if character not in characters:
            raise Unreadable
        return self.take(self._at + 1)
