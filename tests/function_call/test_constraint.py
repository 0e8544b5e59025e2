"""Constraints against xgrammar: what models write is accepted, what the grammar allows can be read back."""

import json
import random
from typing import Any

import pytest
import xgrammar

from function_call.constraint import ToolConstraint, tool_constraint
from function_call.detection import fitted
from function_call.events import collect
from function_call.formats.json_array import JSON_ARRAY
from function_call.registry import Registry
from function_call.stream import OutputParser
from function_call.tool_request import read_tool_request
from tests.function_call.conftest import read_vectors

END = 256
END_BLOCK = "<|content_model_end_sampling|>"
VECTORS = read_vectors("tool_call_vectors.jsonl")
FORMATS = sorted({vector["parser"] for vector in VECTORS} - {"functiongemma", "glm", "qwen"})
PING = {"type": "function", "function": {"name": "ping"}}
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {
                "what": {"type": "string"},
                "deep": {"type": "boolean"},
                "count": {"type": "integer"},
                "where": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
                "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "maxItems": 2},
            },
            "required": ["what", "count"],
            "$defs": {"place": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def compiler() -> xgrammar.GrammarCompiler:
    """A tokenizer of single bytes and an end token: every text can be told token by token."""
    vocabulary = [bytes([value]) for value in range(END)] + [b"<end>"]
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, vocab_size=END + 1, stop_token_ids=[END]))


def matcher(compiler: xgrammar.GrammarCompiler, constraint: ToolConstraint) -> xgrammar.GrammarMatcher:
    assert constraint.grammar is not None and constraint.grammar.kind == "structural_tag"
    return xgrammar.GrammarMatcher(compiler.compile_structural_tag(constraint.grammar.text))


def accepts(compiler: xgrammar.GrammarCompiler, constraint: ToolConstraint, text: str) -> bool:
    state = matcher(compiler, constraint)
    return bool(state.accept_string(text)) and bool(state.accept_token(END))


def constraint_of(registry: Registry, name: str, tools: list[Any], choice: Any, **more: Any) -> ToolConstraint:
    request = read_tool_request(tools, choice, **more)
    assert request is not None
    return tool_constraint(registry.tool_format(name), request)


@pytest.mark.parametrize("name", FORMATS)
def test_required_accepts_what_the_format_writes(
    name: str, registry: Registry, compiler: xgrammar.GrammarCompiler
) -> None:
    accepted = 0
    for vector in VECTORS:
        if vector["parser"] == name and vector["expect"]["content"] is None:
            constraint = constraint_of(registry, name, vector["tools"], "required")
            assert constraint.tool_format is registry.tool_format(name)
            accepted += accepts(compiler, constraint, vector["text"].removesuffix("<|eot|>").removesuffix(END_BLOCK))
            assert not accepts(compiler, constraint, "It is sunny.")
            assert not accepts(compiler, constraint, "")
    assert accepted >= 1


VALUE_ENDS = {
    "qwen_xml": "</parameter>",
    "minimax_xml": "</parameter>",
    "glm_xml": "</arg_value>",
    "deepseek_xml": "</｜DSML｜parameter>",
    "kimi_k3_xml": "<|close|>argument<|sep|>",
    "gemma": '<|"|>',
    "minimax_m3_xml": "]<]minimax[>[</",
}


def walk(state: xgrammar.GrammarMatcher, value_end: str, chance: random.Random, limit: int = 600) -> str | None:
    """A text that the grammar allows, drawn byte by byte with a liking for ends; None if it does not end in time."""
    mask = xgrammar.allocate_token_bitmask(1, END + 1)
    written = bytearray()
    for step in range(limit):
        state.fill_next_token_bitmask(mask)
        words = [int(word) & 0xFFFFFFFF for word in mask[0].tolist()]
        allowed = [t for t in range(END + 1) if words[t // 32] >> (t % 32) & 1]
        if END in allowed and (len(allowed) == 1 or chance.random() < 0.5):
            return written.decode()
        if len(allowed) > 20 and chance.random() < 0.4:
            end = chance.choice((value_end, '"'))
            if state.accept_string(end):
                written += end.encode()
                continue
        plain = [t for t in allowed if 32 <= t < 127 or t == 10] or [t for t in allowed if t != END]
        digits = [t for t in plain if 48 <= t < 58]
        token = chance.choice(plain if len(digits) < len(plain) or step < limit // 2 else digits)
        assert state.accept_token(token)
        written.append(token)
    return None


@pytest.mark.parametrize("name", [*FORMATS, "functiongemma"])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "look"}}], ids=["any", "named"]
)
def test_what_the_grammar_allows_is_read_back(
    name: str, choice: Any, registry: Registry, compiler: xgrammar.GrammarCompiler
) -> None:
    constraint = constraint_of(registry, name, [PING, LOOK], choice)
    assert constraint.tool_format is not None and constraint.tool_format.wire is not None
    wire = constraint.tool_format.wire
    value_end = wire.element[1] or VALUE_ENDS.get(wire.style, "}")
    read = 0
    for seed in range(3):
        text = walk(matcher(compiler, constraint), value_end, random.Random(seed))
        if text is None:
            continue
        parser = OutputParser(None, constraint.tool_format, [PING, LOOK])
        answer = collect([*parser.feed(text), *parser.finish("stop")])
        assert answer.calls, text
        assert answer.content is None, text
        for call in answer.calls:
            arguments = json.loads(call.arguments)
            assert call.name == "look" or not arguments, text
            assert call.name == "ping" or (
                isinstance(arguments["what"], str) and isinstance(arguments["count"], int)
            ), text
        if choice != "required":
            assert [call.name for call in answer.calls] == ["look"]
        read += 1
    assert read


def calls(text: str) -> str:
    return f'<tool_call>\n{{"name": "ping", "arguments": {{}}}}\n</tool_call>{text}'


def test_required_takes_several_calls_unless_they_may_not_be_parallel(
    registry: Registry, compiler: xgrammar.GrammarCompiler
) -> None:
    free = constraint_of(registry, "hermes", [PING], "required")
    one = constraint_of(registry, "hermes", [PING], "required", parallel_tool_calls=False)
    assert accepts(compiler, free, calls("\n" + calls(""))) and accepts(compiler, one, calls(""))
    assert not accepts(compiler, one, calls("\n" + calls("")))


def test_named_is_one_call_of_that_tool(registry: Registry, compiler: xgrammar.GrammarCompiler) -> None:
    named = constraint_of(registry, "hermes", [PING, LOOK], {"type": "function", "function": {"name": "look"}})
    assert not accepts(compiler, named, calls(""))
    look = '<tool_call>\n{"name": "look", "arguments": {"what": "x", "count": 1, "where": null}}\n</tool_call>'
    assert accepts(compiler, named, look)
    assert not accepts(compiler, named, look + "\n" + look)


def test_auto_needs_no_constraint_unless_something_is_to_be_kept(registry: Registry) -> None:
    assert constraint_of(registry, "hermes", [PING, LOOK], "auto").grammar is None
    assert constraint_of(registry, "hermes", [PING, LOOK], "none").grammar is None


def test_auto_binds_strict_tools_from_the_moment_a_call_begins(
    registry: Registry, compiler: xgrammar.GrammarCompiler
) -> None:
    strict = {"type": "function", "function": {**LOOK["function"], "strict": True}}  # type: ignore[dict-item]
    auto = constraint_of(registry, "hermes", [PING, strict], "auto")
    assert accepts(compiler, auto, "It is sunny.")
    good = '<tool_call>\n{"name": "look", "arguments": {"what": "x", "count": 1}}\n</tool_call>'
    assert accepts(compiler, auto, "Well. " + good + " and " + calls(" done"))
    assert not accepts(compiler, auto, good.replace("1", '"one"'))
    loose = calls("").replace("{}", '{"anything": [1]}')
    assert accepts(compiler, auto, loose)


def test_auto_stops_after_one_call_and_calls_only_what_is_allowed(
    registry: Registry, compiler: xgrammar.GrammarCompiler
) -> None:
    one = constraint_of(registry, "deepseekv31", [PING], "auto", parallel_tool_calls=False)
    begin, call, end = (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    )
    assert accepts(compiler, one, "Hm. " + begin + call + end)
    assert not accepts(compiler, one, begin + call + call + end)
    assert not accepts(compiler, one, begin + call + end + " more")
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [LOOK]}}
    limited = constraint_of(registry, "hermes", [PING, LOOK], allowed)
    assert accepts(compiler, limited, "Plain.") and not accepts(compiler, limited, calls(""))


def test_auto_says_what_it_can_not_keep(registry: Registry) -> None:
    constraint = constraint_of(registry, "pythonic", [PING], "auto", parallel_tool_calls=False)
    assert constraint.grammar is None
    assert [a.field for a in constraint.adjustments] == ["parallel_tool_calls"]


def test_newlines_may_stand_between_reasoning_and_the_call(
    registry: Registry, compiler: xgrammar.GrammarCompiler
) -> None:
    request = read_tool_request([PING], "required")
    assert request is not None
    constraint = tool_constraint(registry.tool_format("hermes"), request, after_reasoning=True)
    assert accepts(compiler, constraint, "\n\n" + calls(""))
    harmony = tool_constraint(registry.tool_format("gpt-oss"), request, after_reasoning=True)
    call = "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}<|call|>"
    assert accepts(compiler, harmony, call) and accepts(compiler, harmony, "<|start|>assistant" + call)


def test_the_generic_array_serves_where_the_format_can_not(
    registry: Registry, compiler: xgrammar.GrammarCompiler
) -> None:
    open_keys: dict[str, Any] = {"type": "function", "function": {"name": "any", "parameters": {"type": "object"}}}
    for name, tool in (("functiongemma", PING), ("step3", open_keys), ("pythonic", open_keys)):
        constraint = constraint_of(registry, name, [tool], "required")
        assert constraint.tool_format is JSON_ARRAY
        called = "any" if tool is open_keys else "ping"
        assert accepts(compiler, constraint, f'[{{"name": "{called}", "parameters": {{}}}}]')
    without = read_tool_request([PING], "required")
    assert without is not None and tool_constraint(None, without).tool_format is JSON_ARRAY


def test_the_vocabulary_decides_between_shapes(registry: Registry, compiler: xgrammar.GrammarCompiler) -> None:
    old = fitted(registry, registry.tool_format("mistral"), ["[TOOL_CALLS]"])
    new = fitted(registry, registry.tool_format("mistral"), ["[TOOL_CALLS]", "[ARGS]"])
    request = read_tool_request([PING], "required")
    assert request is not None
    assert accepts(compiler, tool_constraint(old, request), '[TOOL_CALLS][{"name": "ping", "arguments": {}}]')
    assert accepts(compiler, tool_constraint(new, request), "[TOOL_CALLS]ping[ARGS]{}")
    granite = fitted(registry, registry.tool_format("granite"), ["<|start_of_role|>"])
    assert accepts(compiler, tool_constraint(granite, request), '<tool_call>[{"name": "ping", "arguments": {}}]')


def test_markers_that_are_tokens_must_come_as_tokens(registry: Registry) -> None:
    markers = ["<tool_call>", "</tool_call>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"]
    vocabulary = [bytes([value]) for value in range(END)] + [b"<end>", *(marker.encode() for marker in markers)]
    info = xgrammar.TokenizerInfo(vocabulary, vocab_size=len(vocabulary), stop_token_ids=[END])
    compiler = xgrammar.GrammarCompiler(info)
    request = read_tool_request([PING, LOOK], "required")
    assert request is not None
    for name, text in (
        ("hermes", calls("\n" + calls(""))),
        (
            "deepseekv31",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
    ):
        constraint = tool_constraint(registry.tool_format(name), request, token_markers=markers)
        ids: list[int] = []
        rest = text
        while rest:
            marker = next((marker for marker in markers if rest.startswith(marker)), "")
            ids.extend([END + 1 + markers.index(marker)] if marker else rest[:1].encode())
            rest = rest[len(marker) or 1 :]
        state = matcher(compiler, constraint)
        assert all(state.accept_token(token) for token in [*ids, END])
        assert not matcher(compiler, constraint).accept_string(text[:1])


def test_names_that_are_no_python_names_fall_back(registry: Registry) -> None:
    named = {"type": "function", "function": {"name": "server/tool:a"}}
    assert constraint_of(registry, "pythonic", [named], "required").tool_format is JSON_ARRAY
