"""What a tool-call format declares."""

from collections.abc import Callable
from dataclasses import dataclass

from function_call.machinery.reader import Step
from function_call.machinery.session import IdStyle, Session
from function_call.machinery.wire import Wire

STRINGS_GROW = "strings as they grow, other values when they close"
Parse = Callable[[Session], Step[None]]


@dataclass(frozen=True)
class ToolFormat:
    """One wire format. `parse` reads a whole answer; `markers` are the strings that the format stands on, those that are
    special tokens in some vocabulary included: the detokenizer must keep them, the client never sees them."""

    name: str
    parse: Parse
    markers: tuple[str, ...]
    families: str
    aliases: tuple[str, ...] = ()
    wire: Wire | None = None
    """The native shape of a constrained call; None: only the generic JSON array can be guaranteed."""
    wire_without: tuple[str, Wire] | None = None
    """(marker, the shape instead of `wire` for vocabularies that lack it): tokenizers older than the compact form."""
    id_style: IdStyle = "openai"
    streaming: str = "arguments as they grow"
    quirks: str = ""
    frames_turn: bool = False
    """The format frames the whole turn, plain answers too: it reads the text even when the request has no tools."""
    detect: tuple[tuple[str, ...], ...] = ()
    """Alternatives of strings that, all together in a chat template or vocabulary, tell this format from the others."""
