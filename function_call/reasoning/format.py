"""What a reasoning format declares."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from function_call.machinery.reader import Reader, Step
from protocol.sampling import ReasoningFormat


class Split(Protocol):
    """Where a splitter puts what it has read."""

    reader: Reader
    prompt_opened: bool

    def reasoning(self, text: str) -> None:
        """The inside of a block."""

    def close_reasoning(self) -> None:
        """A block of reasoning is over."""

    def marker(self, text: str) -> None:
        """A marker was consumed: it is shown only if the text is left undivided."""

    def lift(self, text: str) -> None:
        """A tool call inside a block that goes on after it."""

    def rest(self, text: str) -> None:
        """Content, and tool calls in their markup."""


SplitText = Callable[[Split], Step[None]]


@dataclass(frozen=True)
class ReasoningEntry:
    """One way of marking reasoning. `open` and `close` are the markers as the tokenizer manager and the scheduler know them
    (`protocol_format`); a format that is framed otherwise has them for its first block."""

    name: str
    split: SplitText
    open: str = ""
    close: str = ""
    aliases: tuple[str, ...] = ()
    models: str = ""
    always: bool = False
    """The output begins inside reasoning whatever the prompt shows."""
    toggle: Literal[
        "enable_thinking", "thinking", "thinking_mode", "reasoning_effort", "thinking_budget", "reasoning", ""
    ] = ""
    on_by_default: bool = True
    markers: tuple[str, ...] = field(default=())
    quirks: str = ""

    @property
    def protocol_format(self) -> ReasoningFormat | None:
        """For `GenerateRequest.reasoning`; None if this format has no markers that ids could be compared with."""
        return ReasoningFormat(self.open, self.close, self.always) if self.open and self.close else None
