"""Answers framed as blocks that say their kind: `<|message_model|>name<|content_...|>body<|end_message|>`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from function_call.machinery.messages import Write
from function_call.machinery.reader import CutShort, Markers, Reader, Step, Unreadable


@dataclass(frozen=True)
class KindBlocks:
    """`open` begins a block; its name ends at one of the three kinds; `ends` end its body."""

    open: str
    reasoning: str
    text: str
    call: str
    ends: tuple[str, ...]

    @cached_property
    def end_markers(self) -> Markers:
        return Markers(*self.ends)

    @cached_property
    def _borders(self) -> Markers:
        return Markers(self.open, *self.ends)

    @cached_property
    def _kinds(self) -> Markers:
        return Markers(self.reasoning, self.text, self.call)

    def read(
        self, reader: Reader, content: Write, reasoning: Write, call: Callable[[str, str], Step[None]]
    ) -> Step[None]:
        """Blocks one after another; text outside of any is content. `call` is given a call's name and its opening as
        written, and reads the body and its end."""
        marker = yield from reader.until(self._borders, content)
        while marker:
            write = content
            if marker == self.open:
                reader.record(marker)
                try:
                    name, kind = yield from reader.text_until(self._kinds)
                except CutShort:
                    reader.recorded()
                    return
                except Unreadable:
                    content(reader.recorded())
                else:
                    opening = reader.recorded()
                    if kind == self.call:
                        yield from call(name, opening)
                    elif kind == self.reasoning:
                        write = reasoning
            marker = yield from reader.until(self._borders, write)


INKLING = KindBlocks(
    "<|message_model|>",
    "<|content_thinking|>",
    "<|content_text|>",
    "<|content_invoke_tool_json|>",
    ("<|end_message|>", "<|content_model_end_sampling|>"),
)
