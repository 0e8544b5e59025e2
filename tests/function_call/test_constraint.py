"""Constraints against xgrammar: what models write is accepted, what the grammar allows can be read back."""

import json
import random
from typing import Any

import pytest
import xgrammar

from function_call.constraint import ToolConstraint, tool_constraint
from function_call.events import collect
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
    for seed in range(6):
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
