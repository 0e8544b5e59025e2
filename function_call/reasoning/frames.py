"""Reasoning in turns that are framed as a whole. Frames of answers are removed, frames of calls are passed on."""

from collections.abc import Callable

from function_call.formats.framed import K3_BORDERS, K3_CLOSE, K3_HEADER_END, K3_OPEN
from function_call.machinery.json_text import JsonWriter
from function_call.machinery.kind_blocks import INKLING
from function_call.machinery.messages import HARMONY, MUSE, Header, Messages
from function_call.machinery.reader import CutShort, Reader, Step, Unreadable
from function_call.reasoning.splitter import Split


class PassedJson:
    """One JSON value, passed on as it is written: markers inside its strings are data. A `Machine`."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.done = False
        self._write = write
        self._json = JsonWriter(lambda text: None)

    def feed(self, text: str, start: int) -> int:
        try:
            end = self._json.feed(text, start)
        except Unreadable as error:
            self._write(text[start : error.at])
            raise
        self._write(text[start:end])
        self.done = self._json.done
        return end

    def finish(self) -> None:
        self.done = True


def pass_json(reader: Reader, write: Callable[[str], None]) -> Step[None]:
    """Passes on a value; one that can't be read, as far as it could be."""
    write((yield from reader.skip_blanks()))
    try:
        yield from reader.drive(PassedJson(write))
    except Unreadable:
        return


def pass_rest(split: Split, messages: Messages) -> Step[None]:
    """Passes on the rest of a call's message with its end, up to the next message if it has none."""
    marker = yield from split.reader.until(messages.borders, split.rest)
    if marker in messages.ends:
        split.rest(marker)
    elif marker:
        split.reader.unread(marker)


def harmony(split: Split) -> Step[None]:
    reader = split.reader

    def call(header: Header) -> Step[None]:
        split.rest(header.text)
        if (yield from reader.peek()) in ("{", "[", '"'):
            yield from pass_json(reader, split.rest)
        yield from pass_rest(split, HARMONY)

    yield from HARMONY.read(reader, split.rest, split.reasoning, call)


def muse(split: Split) -> Step[None]:
    def call(header: Header) -> Step[None]:
        split.rest(header.text if header.text.startswith(MUSE.start) else f"{MUSE.start}assistant {header.text}")
        yield from pass_rest(split, MUSE)

    yield from MUSE.read(split.reader, split.rest, split.reasoning, call)


def inkling(split: Split) -> Step[None]:
    reader = split.reader

    def call(name: str, opening: str) -> Step[None]:
        split.rest(opening)
        yield from pass_json(reader, split.rest)
        split.rest((yield from reader.until(INKLING.end_markers, split.rest)))

    yield from INKLING.read(reader, split.rest, split.reasoning, call)


def kimi_k3(split: Split) -> Step[None]:
    reader = split.reader
    write = split.reasoning if split.prompt_opened else split.rest
    in_tools = False
    while True:
        marker = yield from reader.until(K3_BORDERS, write)
        if not marker:
            return
        if marker not in (K3_OPEN, K3_CLOSE):
            continue
        reader.record(marker)
        try:
            text, _ = yield from reader.text_until(K3_HEADER_END, 1024)
        except CutShort:
            reader.recorded()
            return
        except Unreadable:
            write(reader.recorded())
            continue
        opening = reader.recorded()
        channel = text.strip()
        if in_tools or channel == "tools" or channel not in ("think", "response", "message"):
            split.rest(opening)
            in_tools = (in_tools or channel == "tools") and not (marker == K3_CLOSE and channel == "tools")
            write = split.rest
        else:
            write = split.reasoning if marker == K3_OPEN and channel == "think" else split.rest
