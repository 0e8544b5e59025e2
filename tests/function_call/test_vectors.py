"""Every vector, whole, by character and under random cuts."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from function_call.events import Collected, ToolCallArguments, ToolCallEnd, ToolCallStart, collect
from function_call.registry import Registry
from tests.function_call.conftest import Run, merged, read_vectors

TOOL_VECTORS = read_vectors("tool_call_vectors.jsonl")
REASONING_VECTORS = read_vectors("reasoning_vectors.jsonl")


def label(vector: dict[str, Any]) -> str:
    return f"{vector['parser']}-{vector['case']}"


def stripped(text: str | None) -> str | None:
    return (text or "").strip() or None


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cuts), len(text)]
    return [text[a:b] for a, b in pairwise(places)]


def seen(answer: Collected) -> tuple[str | None, list[dict[str, Any]]]:
    return stripped(answer.content), [
        {"name": call.name, "arguments": json.loads(call.arguments)} for call in answer.calls
    ]


def test_every_format_has_vectors(registry: Registry) -> None:
    tools = {entry.name for entry in registry.tool_formats}
    assert tools - {vector["parser"] for vector in TOOL_VECTORS} == {"hunyuan-opensource"}
    named = {registry.reasoning_format(vector["parser"]).name for vector in REASONING_VECTORS}
    assert named == {entry.name for entry in registry.reasoning_formats}


@pytest.mark.parametrize("vector", TOOL_VECTORS, ids=label)
def test_tool_vector_whole_and_by_character(vector: dict[str, Any], run: Run) -> None:
    text, tools = vector["text"], vector["tools"]
    whole = run([text], vector["parser"], tools=tools)
    expected = (stripped(vector["expect"]["content"]), vector["expect"]["tool_calls"])
    assert seen(collect(whole)) == expected
    by_character = run(list(text), vector["parser"], tools=tools)
    assert merged(by_character) == merged(whole)


@pytest.mark.parametrize("vector", REASONING_VECTORS, ids=label)
def test_reasoning_vector_whole_and_by_character(vector: dict[str, Any], run: Run) -> None:
    feeds = ([vector["text"]], list(vector["text"]))
    answers = [collect(run(feed, None, vector["parser"], opened=vector["prompt_opens_think"])) for feed in feeds]
    expected = vector["expect"]
    assert stripped(answers[0].reasoning) == stripped(expected["reasoning_content"])
    assert stripped(answers[0].content) == stripped(expected["content"])
    assert answers[1] == answers[0]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_cuts_give_the_same_events(data: st.DataObject, run: Run) -> None:
    vector = data.draw(st.sampled_from(TOOL_VECTORS))
    text = vector["text"]
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    events = run(pieces(text, cuts), vector["parser"], tools=vector["tools"])
    assert merged(events) == merged(run([text], vector["parser"], tools=vector["tools"]))
    open_calls: dict[int, str] = {}
    for event in events:
        match event:
            case ToolCallStart(index, identifier, name):
                assert index == len(open_calls) and identifier and name
                open_calls[index] = ""
            case ToolCallArguments(index, fragment):
                assert index == len(open_calls) - 1
                open_calls[index] += fragment
            case ToolCallEnd(index, complete):
                assert complete and isinstance(json.loads(open_calls[index]), dict)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_reasoning_under_any_cuts(data: st.DataObject, run: Run) -> None:
    vector = data.draw(st.sampled_from(REASONING_VECTORS))
    text, opened = vector["text"], vector["prompt_opens_think"]
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    assert merged(run(pieces(text, cuts), None, vector["parser"], opened=opened)) == merged(
        run([text], None, vector["parser"], opened=opened)
    )
