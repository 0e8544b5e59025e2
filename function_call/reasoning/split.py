"""Runs a reasoning format over the text and sends its two halves where they belong."""

from collections.abc import Callable

from function_call.events import ReasoningDelta
from function_call.machinery.reader import Reader, Step
from function_call.machinery.session import ContentWriter, EventSink
from function_call.reasoning.format import ReasoningEntry


class ReasoningSplit:
    """Newlines at both ends of a block of reasoning, and right after it, are framing and dropped.

    `stream` off sends a block at its end. `separate` off leaves the text undivided: reasoning is content, and only the
    rest is looked through for tool calls.
    """

    def __init__(
        self,
        entry: ReasoningEntry,
        sink: EventSink,
        rest: Callable[[str], None],
        content: ContentWriter,
        *,
        prompt_opened: bool,
        stream: bool,
        separate: bool,
    ) -> None:
        self.reader = Reader()
        self.prompt_opened = prompt_opened or entry.always
        self._sink = sink
        self._rest = rest
        self._content = content
        self._stream = stream
        self._separate = separate
        self._held: list[str] = []
        self._newlines: list[str] = []
        self._in_block = False
        self._trim_rest = False
        self._steps: Step[None] | None = entry.split(self)

    def feed(self, text: str) -> None:
        self.reader.push(text)
        self._run()

    def finish(self, cut: bool) -> None:
        self.reader.close(cut)
        self._run()
        if self._in_block:
            for newlines in self._newlines:
                self._emit(newlines)
            self._newlines = []
        self._send_held()

    def reasoning(self, text: str) -> None:
        if not self._separate:
            self._content.write(text)
            return
        if not self._in_block:
            text = text.lstrip("\n")
            if not text:
                return
            self._in_block = True
            if not self._content.written:
                self._content.drop_blanks()
        body = text.rstrip("\n")
        if body:
            for newlines in self._newlines:
                self._emit(newlines)
            self._newlines = []
            self._emit(body)
        if len(body) < len(text):
            self._newlines.append(text[len(body) :])

    def close_reasoning(self) -> None:
        if not self._separate:
            return
        self._in_block = False
        self._newlines = []
        self._trim_rest = True
        if not self._content.written:
            self._content.drop_blanks()
        self._send_held()

    def lift(self, text: str) -> None:
        self._rest(text)

    def rest(self, text: str) -> None:
        if not text:
            return
        if self._in_block:
            self.close_reasoning()
        if self._trim_rest:
            text = text.lstrip("\n")
            if not text:
                return
            self._trim_rest = False
        self._rest(text)

    def marker(self, text: str) -> None:
        if not self._separate:
            self._content.write(text)

    def _emit(self, text: str) -> None:
        if self._stream:
            self._sink.text(ReasoningDelta, text)
        else:
            self._held.append(text)

    def _send_held(self) -> None:
        for text in self._held:
            self._sink.text(ReasoningDelta, text)
        self._held = []

    def _run(self) -> None:
        if self._steps is not None:
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None
        if self._steps is None:
            text = self.reader.remaining()
            if text:
                self.rest(text)
