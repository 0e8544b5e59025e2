"""The vectors, the registry, and ways of feeding a parser."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from function_call.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallStart
from function_call.registry import Registry
from function_call.stream import OutputParser, ParserOptions

VECTORS = Path(__file__).parent / "vectors"
Run = Callable[..., list[Event]]


def read_vectors(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (VECTORS / name).read_text(encoding="utf-8").splitlines()]


def merged(events: Iterable[Event]) -> list[Event]:
    """Adjacent pieces of the same kind joined, ids left out: what must not depend on how the text was cut."""
    out: list[Event] = []
    for event in events:
        match event, out[-1] if out else None:
            case ContentDelta(text), ContentDelta(before):
                out[-1] = ContentDelta(before + text)
            case ReasoningDelta(text), ReasoningDelta(before):
                out[-1] = ReasoningDelta(before + text)
            case ToolCallArguments(index, fragment), ToolCallArguments(other, before) if index == other:
                out[-1] = ToolCallArguments(index, before + fragment)
            case ToolCallStart(index, _, name), _:
                out.append(ToolCallStart(index, "", name))
            case _:
                out.append(event)
    return out


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry()


@pytest.fixture(scope="session")
def run(registry: Registry) -> Run:
    """Feeds a text in pieces to the named parsers and returns the events."""

    def feed(
        pieces: Sequence[str],
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        tools: Sequence[dict[str, Any]] = (),
        reason: str = "stop",
        opened: bool = False,
        **options: Any,
    ) -> list[Event]:
        parser = OutputParser(
            registry.reasoning_format(reasoning_parser) if reasoning_parser else None,
            registry.tool_format(tool_parser) if tool_parser else None,
            tools,
            prompt_opens_reasoning=opened,
            options=ParserOptions(**options),
        )
        events = [event for piece in pieces for event in parser.feed(piece)]
        return [*events, *parser.finish(reason)]

    return feed
