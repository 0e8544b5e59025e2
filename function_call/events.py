"""What a parser says of an answer as it grows, and the whole answer that these events add up to."""

from collections.abc import Iterable

import msgspec


class ContentDelta(msgspec.Struct, frozen=True):
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    text: str


class ToolCallStart(msgspec.Struct, frozen=True):
    """A call begins. `index` counts from 0 in this answer; the name is whole."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """The next piece of the call's arguments, a JSON text of an object. Pieces are never taken back."""

    index: int
    fragment: str


class ToolCallEnd(msgspec.Struct, frozen=True):
    """No more of this call. Not `complete`: the answer was cut inside it, or it turned out to be no call after all;
    its pieces are then a beginning of a JSON text, and a whole answer leaves the call out."""

    index: int
    complete: bool


Event = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd


class CollectedCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str


class Collected(msgspec.Struct, frozen=True):
    """A whole answer. `cut_calls` were begun and never completed: they are no calls, but a stream has shown them."""

    content: str | None
    reasoning: str | None
    calls: tuple[CollectedCall, ...] = ()
    cut_calls: tuple[CollectedCall, ...] = ()


def collect(events: Iterable[Event]) -> Collected:
    """The stream, collected: the only way in which a whole answer is made."""
    content: list[str] = []
    reasoning: list[str] = []
    starts: dict[int, ToolCallStart] = {}
    fragments: dict[int, list[str]] = {}
    complete: dict[int, bool] = {}
    for event in events:
        match event:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallStart(index):
                starts[index] = event
                fragments[index] = []
            case ToolCallArguments(index, fragment):
                fragments[index].append(fragment)
            case ToolCallEnd(index, whole):
                complete[index] = whole
    calls = {i: CollectedCall(start.id, start.name, "".join(fragments[i])) for i, start in starts.items()}
    return Collected(
        content="".join(content) or None,
        reasoning="".join(reasoning) or None,
        calls=tuple(call for i, call in calls.items() if complete.get(i, False)),
        cut_calls=tuple(call for i, call in calls.items() if not complete.get(i, False)),
    )
