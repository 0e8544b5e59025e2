"""Text that no model should write: the same events under any cut, valid JSON, nothing lost, and linear work."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from function_call.events import Collected, ToolCallArguments, ToolCallEnd, collect
from function_call.machinery.format import ToolFormat
from function_call.registry import Registry
from function_call.stream import OutputParser
from tests.function_call.conftest import Run, merged, read_vectors

VECTORS = read_vectors("tool_call_vectors.jsonl")
TEXTS = {
    name: [vector["text"] for vector in VECTORS if vector["parser"] == name]
    for name in sorted({vector["parser"] for vector in VECTORS})
}
TOOLS: list[dict[str, Any]] = list({json.dumps(tool): tool for vector in VECTORS for tool in vector["tools"]}.values())
FORMATS = Registry().tool_formats
REASONING = [None, *(entry.name for entry in Registry().reasoning_formats)]
SHARDS = (
    *"{}[]()'\"\\,:=<>&`\n ",
    "\\u12",
    "\\ud83d",
    "\\ude00",
    "null",
    "name",
    "text",
    "&amp;",
    "&am",
    "```",
    "\\n",
    "<think>",
    "</think>",
    '{"name": "ping", "arguments": {}}',
    "n" * 300,
)
MAKES_NOTHING_VANISH = [
    "hermes",
    "qwen25",
    "granite4",
    "longcat",
    "granite-20b-fc",
    "granite",
    "phi4_mini_json",
    "jamba",
    "deepseekv3",
    "deepseekv31",
    "deepseekv32",
    "kimi_k2",
    "glm45",
    "hunyuan",
    "k2_horizon",
    "qwen3_coder",
    "seed_oss",
    "minimax-m2",
    "dots",
    "minicpm5",
    "step3",
    "minimax-m3",
    "lfm2",
    "olmo3",
    "gemma4",
    "functiongemma",
    "apertus2509",
]


@st.composite
def hostile(draw: st.DrawFn, entry: ToolFormat) -> str:
    """Whole and torn vectors, markers, halves of markers and shards, in any order."""
    texts = TEXTS.get(entry.name, ["text"])

    def torn(text: str) -> st.SearchStrategy[str]:
        return st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).map(lambda ab: text[min(ab) : max(ab)])

    markers = list(entry.markers) or ["{"]
    part = st.one_of(
        st.sampled_from(texts),
        st.sampled_from(texts).flatmap(torn),
        st.sampled_from(markers),
        st.sampled_from(markers).flatmap(torn),
        st.sampled_from(SHARDS),
    )
    return "".join(draw(st.lists(part, min_size=1, max_size=7)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_cuts_never_matter(data: st.DataObject, run: Run) -> None:
    entry = data.draw(st.sampled_from(FORMATS))
    reasoning = data.draw(st.sampled_from(REASONING))
    opened = data.draw(st.booleans())
    text = data.draw(hostile(entry))
    reason = data.draw(st.sampled_from(["stop", "length"]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = merged(run([text], entry.name, reasoning, TOOLS, reason, opened))
    assert merged(run(pieces, entry.name, reasoning, TOOLS, reason, opened)) == whole
    assert merged(run(list(text), entry.name, reasoning, TOOLS, reason, opened)) == whole
    arguments: dict[int, str] = {}
    for event in whole:
        match event:
            case ToolCallArguments(index, fragment):
                arguments[index] = arguments.get(index, "") + fragment
            case ToolCallEnd(index, True):
                assert isinstance(json.loads(arguments[index]), dict)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_text_without_calls_is_content_unchanged(data: st.DataObject, run: Run) -> None:
    entry = data.draw(st.sampled_from([entry for entry in FORMATS if entry.name in MAKES_NOTHING_VANISH]))
    text = data.draw(hostile(entry))
    events = run([text], entry.name, tools=TOOLS)
    answer: Collected = collect(events)
    if not answer.calls:
        assert (answer.content or "").strip() == text.strip()


def storms(entry: ToolFormat, size: int) -> Iterator[str]:
    vector = TEXTS.get(entry.name, ["some text"])[0]
    seeds = ["{", "[", "\"'", "\\", " ", "&", "<", '{"a":', vector, vector[: len(vector) * 2 // 3]]
    for marker in entry.markers[:4]:
        seeds.extend((marker, marker[:-1]))
    for seed in seeds:
        if seed:
            yield seed * (size // len(seed))
            yield vector[: len(vector) // 2] + seed * (size // len(seed))


@pytest.mark.parametrize("entry", FORMATS, ids=lambda entry: entry.name)
def test_work_grows_with_the_text_and_no_faster(entry: ToolFormat) -> None:
    size = 4_000
    for text in storms(entry, size):
        for step in (29, len(text)):
            parser = OutputParser(None, entry, TOOLS)
            for at in range(0, len(text), step):
                parser.feed(text[at : at + step])
            parser.finish("stop")
            assert parser.work <= 40 * len(text) + 4_000, (text[:80], step)


def test_nesting_without_end_is_no_call(run: Run) -> None:
    text = '<tool_call>\n{"name": "f", "arguments": ' + '{"a": ' * 5000
    answer = collect(run([text], "hermes"))
    assert answer.calls == () and answer.content == text
