"""What a reasoning format declares."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from function_call.machinery.reader import Step
from function_call.reasoning.splitter import Split
from function_call.reasoning.tags import Tags
from protocol.sampling import ReasoningFormat

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
    blocks: Tags | None = None
    """All its markers, for a format that goes by pairs of them."""

    @property
    def protocol_format(self) -> ReasoningFormat | None:
        """For `GenerateRequest.reasoning`; None if this format has no markers that ids could be compared with."""
        if not self.open or not self.close:
            return None
        blocks = self.blocks
        if blocks is None:
            return ReasoningFormat(self.open, self.close, self.always)
        opens = tuple(marker for marker in blocks.opens.all if marker != self.open)
        closes = tuple(marker for marker in blocks.closes if marker != self.close)
        return ReasoningFormat(self.open, self.close, self.always, opens, closes, blocks.tool_opens)
