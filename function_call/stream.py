"""The one path from text to events: reasoning is split off first, what remains goes to the tool format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from function_call.events import ContentDelta, Event
from function_call.machinery.format import ToolFormat
from function_call.machinery.reader import Step
from function_call.machinery.session import ContentWriter, EventSink, Session, SessionOptions, ToolSet
from function_call.reasoning.format import ReasoningEntry
from function_call.reasoning.split import ReasoningSplit

CUT_REASONS = frozenset({"length", "abort", "error"})


@dataclass(frozen=True)
class ParserOptions:
    """`earlier_calls`: tool calls that the conversation holds already (kimi ids count all of them)."""

    unknown_tools: Literal["forward", "drop"] = "forward"
    separate_reasoning: bool = True
    stream_reasoning: bool = True
    earlier_calls: int = 0


class OutputParser:
    """Reads one choice. `feed` as text comes, `finish` once at its end; both return the events that this makes certain.

    `reasoning` and `tool_format` come from `function_call.registry.Registry`; either may be None. `tools` are OpenAI tool
    objects (legacy functions and custom tools normalised by `function_call.tool_request`); their schemas type the arguments.
    """

    def __init__(
        self,
        reasoning: ReasoningEntry | None,
        tool_format: ToolFormat | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        prompt_opens_reasoning: bool = False,
        options: ParserOptions = ParserOptions(),
    ) -> None:
        self._sink = EventSink()
        self._session: Session | None = None
        self._steps: Step[None] | None = None
        if tool_format is not None:
            self._session = Session(
                self._sink,
                ToolSet.of(tools),
                SessionOptions(options.unknown_tools == "drop", tool_format.id_style, options.earlier_calls),
            )
            self._steps = tool_format.parse(self._session)
        self._content = self._session.output if self._session else ContentWriter(self._sink)
        self._split: ReasoningSplit | None = None
        if reasoning is not None:
            self._split = ReasoningSplit(
                reasoning,
                self._sink,
                self._feed_rest,
                self._content,
                prompt_opened=prompt_opens_reasoning,
                stream=options.stream_reasoning,
                separate=options.separate_reasoning,
            )

    @property
    def calls(self) -> int:
        """Whole calls so far."""
        return self._session.completed if self._session else 0

    @property
    def work(self) -> int:
        """Characters that the readers have looked at, for the test that this grows with the text and no faster."""
        readers = [part.reader for part in (self._session, self._split) if part is not None]
        return sum(reader.work for reader in readers)

    def finish_reason(self, reason: str) -> str:
        """The reason for the client, after `finish`: `tool_calls` if the answer ended by itself and made calls."""
        return "tool_calls" if reason == "stop" and self.calls else reason

    def feed(self, text: str) -> list[Event]:
        if text:
            if self._split is not None:
                self._split.feed(text)
            else:
                self._feed_rest(text)
        return self._sink.take()

    def finish(self, reason: str) -> list[Event]:
        """The end: what was held back is released. `reason` as in `protocol.outputs.Finish`; "length", "abort" and "error"
        mean that the text was cut, so that an open call is not complete."""
        cut = reason in CUT_REASONS
        if self._split is not None:
            self._split.finish(cut)
        if self._session is not None:
            self._session.reader.close(cut)
            self._run()
        if not self.calls:
            self._content.release()
        return self._sink.take()

    def _feed_rest(self, text: str) -> None:
        if self._session is not None:
            self._session.reader.push(text)
            self._run()
        elif self._split is not None:
            self._content.write(text)
        else:
            self._sink.text(ContentDelta, text)

    def _run(self) -> None:
        """Lets the format read on until it needs more text; what follows its own end is content."""
        assert self._session is not None
        if self._steps is not None:
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None
        if self._steps is None:
            self._session.content(self._session.reader.remaining())
