"""What a stream shows and when, beyond what the vectors say."""

import json
import re
from typing import Any

import pytest

from function_call.events import (
    ContentDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    collect,
)
from function_call.registry import Registry
from function_call.stream import OutputParser, ParserOptions
from tests.function_call.conftest import Run, read_vectors

CALL = '<tool_call>\n{"name": "write", "arguments": {"text": "one two", "n": 1}}\n</tool_call>'
WRITE = {
    "type": "function",
    "function": {"name": "write", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}},
}


def test_plain_text_passes_at_once(run: Run) -> None:
    assert run(["Hel", "lo \n"]) == [ContentDelta("Hel"), ContentDelta("lo \n")]


def test_arguments_come_while_they_grow(registry: Registry) -> None:
    parser = OutputParser(None, registry.tool_format("hermes"), [])
    at = CALL.index("one") + 3
    first = parser.feed(CALL[:at])
    assert isinstance(first[0], ToolCallStart) and first[0].name == "write"
    assert first[1:] == [ToolCallArguments(0, '{"text": "one')]
    assert parser.feed(CALL[at : at + 2]) == [ToolCallArguments(0, " t")]


@pytest.mark.parametrize("name", sorted({entry.name for entry in Registry().tool_formats} - {"minimax-m3"}))
def test_no_format_sends_long_arguments_in_one_lump(name: str, registry: Registry) -> None:
    """The longest text argument of the vectors arrives in several pieces when the text comes by character."""
    vectors = [v for v in read_vectors("tool_call_vectors.jsonl") if v["parser"] == name and v["expect"]["tool_calls"]]
    for vector in vectors:
        parser = OutputParser(None, registry.tool_format(name), vector["tools"])
        events = [event for character in vector["text"] for event in parser.feed(character)]
        pieces = [event for event in events if isinstance(event, ToolCallArguments)]
        whole = max(len(json.dumps(call["arguments"])) for call in vector["expect"]["tool_calls"])
        waits = vector["case"] == "parameters-key"  # another member could still win
        assert whole < 10 or waits or len(pieces) > 4, vector["case"]


@pytest.mark.parametrize("cut", range(1, len(CALL)))
def test_a_call_cut_by_the_limit_is_never_whole(cut: int, registry: Registry) -> None:
    parser = OutputParser(None, registry.tool_format("hermes"), [])
    events = [*parser.feed(CALL[:cut]), *parser.finish("length")]
    answer = collect(events)
    whole = CALL.rindex("}") <= cut - 1
    assert bool(answer.calls) == whole
    assert parser.finish_reason("length") == "length"
    assert whole or answer.cut_calls or answer.content == CALL[:cut]


def test_finish_reason_tells_of_calls(registry: Registry) -> None:
    parser = OutputParser(None, registry.tool_format("hermes"), [])
    parser.feed(CALL)
    parser.finish("stop")
    assert parser.finish_reason("stop") == "tool_calls"
    silent = OutputParser(None, registry.tool_format("hermes"), [])
    silent.feed("No.")
    silent.finish("stop")
    assert silent.finish_reason("stop") == "stop"


def test_a_missing_end_is_forgiven_only_if_the_model_stopped(run: Run) -> None:
    text = "<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>a</arg_value>\n"
    assert collect(run([text], "glm45", tools=[WRITE])).calls
    cut = collect(run([text], "glm45", tools=[WRITE], reason="length"))
    assert not cut.calls and cut.cut_calls and cut.content is None


def test_an_unreadable_block_is_content_even_after_it_began(run: Run) -> None:
    text = 'Hm. <tool_call>\n{"name": "write", "arguments": {"text" "x"}}</tool_call> end'
    events = run([text], "hermes")
    assert ToolCallEnd(0, False) in events
    answer = collect(events)
    assert answer.content == text and not answer.calls


def test_calls_after_an_unreadable_block_are_found(run: Run) -> None:
    answer = collect(run(["<tool_call>never mind " + CALL], "hermes"))
    assert [call.name for call in answer.calls] == ["write"]
    assert answer.content == "<tool_call>never mind"


def test_an_end_marker_that_comes_late_is_swallowed_once(run: Run) -> None:
    late = CALL.replace("</tool_call>", "hm</tool_call>")
    assert collect(run([late], "hermes")).content == "hm"
    assert collect(run([CALL + "</tool_call>"], "hermes")).content == "</tool_call>"


def test_calls_after_text_in_an_unclosed_group_are_found(run: Run) -> None:
    def invoke(name: str) -> str:
        return f'<｜DSML｜invoke name="{name}">\n</｜DSML｜invoke>\n'

    text = "<｜DSML｜function_calls>\n" + invoke("a") + "and also\n" + invoke("b") + "</｜DSML｜function_calls>"
    answer = collect(run([text], "deepseekv32"))
    assert [c.name for c in answer.calls] == ["a", "b"] and answer.content == "and also"
    assert collect(run(["Say " + invoke("a")], "deepseekv32")).calls == ()


def test_code_fences_and_thoughts_hold_no_calls(run: Run) -> None:
    block = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="a">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    fenced = f"Write:\n```\n{block}\n```\nso."
    assert collect(run(list(fenced), "deepseekv4")).content == fenced
    assert len(collect(run([fenced + block], "deepseekv4")).calls) == 1
    thought = '<think><tool_calls>{"name": "a", "arguments": {}}</tool_calls></think>'
    assert collect(run([thought], "minimax")).content == thought


def test_unknown_tools_are_forwarded_or_dropped(run: Run) -> None:
    text = CALL.replace("write", "other") + "\n" + CALL
    forwarded = collect(run([text], "hermes", tools=[WRITE]))
    assert [call.name for call in forwarded.calls] == ["other", "write"]
    events = run([text], "hermes", tools=[WRITE], unknown_tools="drop")
    dropped = collect(events)
    assert [call.name for call in dropped.calls] == ["write"] and dropped.content is None
    assert [event.index for event in events if isinstance(event, ToolCallStart)] == [0]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("text='O'Neil'", {"text": "O'Neil"}),
        ('text="say "hi" now"', {"text": 'say "hi" now'}),
        ("n=07, from='x', f=f'a{b}'", {"n": 7, "from": "x", "f": "a{b}"}),
        ("pair=(1, 'two'), none=None", {"pair": [1, "two"], "none": None}),
        (r"text='a\n\'b\''", {"text": "a\n'b'"}),
        ("text='a', ", {"text": "a"}),
        ("'positional'", None),
        ("text=other", None),
        ("text==1", None),
    ],
)
def test_python_calls(written: str, read: dict[str, Any] | None, run: Run) -> None:
    text = f"[write({written})]"
    answer = collect(run([text], "pythonic"))
    assert [json.loads(call.arguments) for call in answer.calls] == ([] if read is None else [read])
    assert answer.content == (text if read is None else None)


def test_brackets_in_prose_are_prose(run: Run) -> None:
    text = "See [1], [the docs](http://x), [item(s)] and [f(x), g]; [ ] too."
    assert collect(run(list(text), "pythonic")).content == text


def test_ids_have_the_form_of_the_family(run: Run) -> None:
    def ids(text: str, parser: str, **options: Any) -> list[str]:
        return [call.id for call in collect(run([text], parser, **options)).calls]

    twice = ids(CALL + CALL, "hermes")
    assert len(set(twice)) == 2 and all(re.fullmatch(r"call_[0-9a-f]{24}", i) for i in twice)
    assert all(re.fullmatch(r"[a-zA-Z0-9]{9}", i) for i in ids("[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[ARGS]{}", "mistral"))
    assert ids("[TOOL_CALLS]a[CALL_ID]abcDEF123[ARGS]{}", "mistral") == ["abcDEF123"]
    own = "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:4<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert ids(own, "kimi_k2", earlier_calls=4) == ["functions.a:4"]
    nameless = own.replace("functions.a:4", "a")
    assert ids(nameless, "kimi_k2", earlier_calls=7) == ["functions.a:7"]


def test_ids_are_unique_even_if_the_model_repeats_its_own(run: Run) -> None:
    call = "<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    answer = collect(run(["<|tool_calls_section_begin|>" + call * 3], "kimi_k2"))
    assert [c.id for c in answer.calls] == ["functions.a:0", "functions.a:1", "functions.a:2"]
    again = collect(run(["[TOOL_CALLS]a[CALL_ID]abcDEF123[ARGS]{}" * 2], "mistral"))
    assert len({c.id for c in again.calls}) == 2


def test_names_and_attributes_that_tokenizers_have_bent(run: Run) -> None:
    muse = (
        ' to=write<|message|><atem:function_calls><atem:invoke name="write.write"></atem:invoke></atem:function_calls>'
    )
    assert [c.name for c in collect(run([muse], "muse", tools=[WRITE])).calls] == ["write"]
    glyphs = '<function\u0120name="write"><param\u0120name="text">a</param></function>'
    assert [c.arguments for c in collect(run([glyphs], "minicpm5", tools=[WRITE])).calls] == ['{"text": "a"}']


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"a": 1,}', {"a": 1}),
        ("{'a': True, 'b': None}", {"a": True, "b": None}),
        ('{"a": "line\nbreak"}', {"a": "line\nbreak"}),
        ('"{\\"a\\": \\"\\\\ud83d\\\\ude80\\"}"', {"a": "🚀"}),
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
        ("{\"a\": {'b': [1, (2)]}}", None),
        ('{"a": 00123, "b": 1e999}', None),
        ("null", {}),
        ('""', {}),
        ("[1]", None),
        ('{"a": "\\q \\u12 x"}', {"a": "\\q \\u12 x"}),
    ],
)
def test_lenient_json(written: str, read: dict[str, Any] | None, run: Run) -> None:
    text = '<tool_call>{"name": "f", "arguments": ' + written + "}</tool_call>"
    answer = collect(run([text], "hermes"))
    assert [json.loads(call.arguments) for call in answer.calls] == ([] if read is None else [read])
    assert answer.content == (text if read is None else None)


def test_arguments_win_over_parameters_in_any_order(run: Run) -> None:
    for members in ('"parameters": {"a": 1}, "arguments": {"b": 2}', '"arguments": {"b": 2}, "parameters": {"a": 1}'):
        answer = collect(run(['<tool_call>{"name": "f", ' + members + "}</tool_call>"], "hermes"))
        assert [call.arguments for call in answer.calls] == ['{"b": 2}']


def test_json_that_is_no_call_stays_content(run: Run) -> None:
    for text in ('{"city": "Oslo"}', '{"name": "Bob", "age": 3}', "[1, 2]", '[{"a": 1}]', "{"):
        assert collect(run([text], "llama3", tools=[WRITE])).content == text
        assert collect(run([text], "xlam", tools=[WRITE])).content == text


def test_end_markers_inside_strings_are_data(run: Run) -> None:
    text = CALL.replace("one two", "a </tool_call> b <tool_call>")
    answer = collect(run([text], "hermes"))
    assert json.loads(answer.calls[0].arguments)["text"] == "a </tool_call> b <tool_call>"


def test_reasoning_then_a_call(run: Run) -> None:
    answer = collect(run(["<think>\nHm.\n</think>\n\n" + CALL], "hermes", "qwen3"))
    assert (answer.reasoning, answer.content, len(answer.calls)) == ("Hm.", None, 1)


def test_calls_inside_closed_reasoning_are_none(run: Run) -> None:
    answer = collect(run([f"<think>{CALL}</think>ok"], "hermes", "deepseek-r1"))
    assert answer.calls == () and answer.reasoning == CALL and answer.content == "ok"


def test_gpt_oss_reasoning_and_calls_together(run: Run) -> None:
    text = (
        "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary<|message|>On it.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.a.b <|constrain|>json<|message|>"
        '{"q": "<|end|><|start|>x<|message|>"}<|call|>'
    )
    answer = collect(run([text], "gpt-oss", "gpt-oss"))
    assert (answer.reasoning, answer.content) == ("Look.", "On it.")
    assert [(c.name, json.loads(c.arguments)) for c in answer.calls] == [("a.b", {"q": "<|end|><|start|>x<|message|>"})]


@pytest.mark.parametrize("name", ["kimi_k3", "muse", "inkling", "cohere_command4", "gpt-oss"])
def test_framed_formats_read_the_same_after_their_reasoning_format(name: str, run: Run) -> None:
    for vector in read_vectors("tool_call_vectors.jsonl"):
        if vector["parser"] == name:
            alone = collect(run([vector["text"]], name, tools=vector["tools"]))
            both = collect(run([vector["text"]], name, name, tools=vector["tools"]))
            assert [(c.name, c.arguments) for c in both.calls] == [(c.name, c.arguments) for c in alone.calls]
            assert (both.content or "").strip() == (alone.content or "").strip()


def test_reasoning_can_be_sent_whole_or_left_in_the_text(run: Run) -> None:
    pieces = ["<think>a", "b</th", "ink>c"]
    assert run(pieces, None, "qwen3", stream_reasoning=False) == [ReasoningDelta("ab"), ContentDelta("c")]
    assert collect(run(pieces, None, "qwen3", separate_reasoning=False)).content == "<think>ab</think>c"
    undivided = collect(run(["<think>", CALL, "</think>"], "hermes", "deepseek-v3", separate_reasoning=False))
    assert undivided.calls == () and undivided.reasoning is None


def test_options_have_the_documented_defaults() -> None:
    assert ParserOptions() == ParserOptions("forward", True, True, 0)
