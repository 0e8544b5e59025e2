"""What a reasoning format is handed to divide a text with."""

from typing import Protocol

from function_call.machinery.reader import Reader


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
