"""Tools and reasoning through the official SDK, against a real model: an agent's loop, every tool_choice, budgets."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.integration.servers import PATIENCE_S, Server, serving

QUESTION: Any = {"role": "user", "content": "What is the weather in Paris?"}


def tool(name: str, properties: dict[str, Any], **more: Any) -> Any:
    parameters = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters} | more}


WEATHER = tool("get_weather", {"city": {"enum": ["Paris", "Rome"]}})
CLOCK = tool("get_time", {"zone": {"enum": ["CET", "UTC"]}})
GREEDY: Any = {"model": "smollm2", "messages": [QUESTION], "max_tokens": 100, "temperature": 0}
NAMED = {"type": "function", "function": {"name": "get_time"}}


@pytest.fixture(scope="module")
def thinker(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """SmolLM2 as a model that always thinks: markers of several tokens, and it never closes its reasoning by itself."""
    flags = ("--model-path", str(smollm2_gguf), "--served-model-name", "smollm2", "--tool-call-parser", "auto")
    with serving(tmp_path_factory.mktemp("thinker"), *flags, "--reasoning-parser", "deepseek-r1") as running:
        yield running.wait_ready()


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=PATIENCE_S)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with client_of(server) as one:
        yield one


@pytest.fixture
def thinking(thinker: Server) -> Iterator[openai.OpenAI]:
    with client_of(thinker) as one:
        yield one


def told_of(answer: ChatCompletion) -> list[dict[str, Any]]:
    told: Any = answer.to_dict()["adjustments"]
    return list(told)


def answer(client: openai.OpenAI, streamed: bool, **fields: Any) -> Any:
    """The one choice of an answer, whole or put together from a stream by the SDK, which checks every chunk."""
    if not streamed:
        whole = client.chat.completions.create(**(GREEDY | fields))
        ChatCompletion.model_validate(whole.to_dict(), strict=True)
        return whole.choices[0]
    try:
        with client.chat.completions.stream(**(GREEDY | fields)) as stream:
            return stream.get_final_completion().choices[0]
    except openai.LengthFinishReasonError as cut:
        return cut.completion.choices[0]


def names_of(choice: Any) -> list[str]:
    """The names of the calls, whose arguments must fit their schemas."""
    schemas = {one["function"]["name"]: one["function"]["parameters"] for one in (WEATHER, CLOCK)}
    for call in choice.message.tool_calls:
        jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])
    called: list[str] = [call.function.name for call in choice.message.tool_calls]
    return called


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_an_agent_loop(client: openai.OpenAI, streamed: bool) -> None:
    """A call is required, its result is sent back, and the second turn answers in words."""
    first = answer(client, streamed, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    assert first.finish_reason == "tool_calls" and names_of(first) == ["get_weather"]
    (call,) = first.message.tool_calls
    function = {"name": call.function.name, "arguments": call.function.arguments}
    said = {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees, sunny"}
    second = answer(client, streamed, messages=[QUESTION, said, result], tools=[WEATHER], max_tokens=24)
    assert second.finish_reason in ("stop", "length") and second.message.content
    assert not second.message.tool_calls


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        ("required", False, [["get_weather"], ["get_time"]]),
        (NAMED, None, [["get_time"]]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}, False, [["get_time"]]),
    ],
    ids=["one", "named", "allowed"],
)
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_choice_is_a_constraint(
    client: openai.OpenAI, choice: Any, parallel: bool | None, expected: list[list[str]], temperature: float
) -> None:
    fields: dict[str, Any] = {} if parallel is None else {"parallel_tool_calls": parallel}
    made = answer(client, False, tools=[WEATHER, CLOCK], tool_choice=choice, temperature=temperature, seed=3, **fields)
    assert made.finish_reason == "tool_calls" and names_of(made) in expected and made.message.content is None


def test_a_stream_of_required_calls_has_the_name_first_and_grows(client: openai.OpenAI) -> None:
    chunks = client.chat.completions.create(
        **GREEDY, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, stream=True
    )
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    first, *rest = [delta for delta in deltas if delta.function is not None]
    assert first.id and first.function.name == "get_weather" and first.function.arguments == ""
    assert len(rest) > 1 and all(delta.id is None and delta.function.name is None for delta in rest)
    assert json.loads("".join(delta.function.arguments for delta in rest)) == {"city": "Paris"}


def test_strict_tools_bind_a_call_that_the_model_begins_by_itself(client: openai.OpenAI) -> None:
    """It has seen calls with an argument too many: without `strict` it makes such a call, with it there is no such token."""
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'
    seen = [{"role": "user", "content": "Weather in Rome?"}, {"role": "assistant", "content": call}]
    messages = [*seen * 3, {"role": "user", "content": "Weather in Paris?"}]
    for strict in (False, True):
        tools = [tool("get_weather", {"city": {"enum": ["Paris", "Rome"]}}, strict=strict)]
        made = answer(client, False, messages=messages, tools=tools)
        (called,) = made.message.tool_calls
        assert ("days" in json.loads(called.function.arguments)) is not strict
        assert made.finish_reason == "tool_calls"


def test_custom_tools(client: openai.OpenAI) -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "(ls|pwd)( -l)?"}}
    shell: Any = {"type": "custom", "custom": {"name": "shell", "description": "Runs a command.", "format": grammar}}
    choice: Any = {"type": "custom", "custom": {"name": "shell"}}
    made = answer(client, False, tools=[shell], tool_choice=choice)
    (call,) = made.message.tool_calls
    assert call.type == "custom" and call.custom.name == "shell"
    assert call.custom.input in ("ls", "pwd", "ls -l", "pwd -l")
    chunks = client.chat.completions.create(**GREEDY, tools=[shell], tool_choice=choice, stream=True)
    deltas = [call.to_dict() for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(delta["custom"]["input"] for delta in deltas) == call.custom.input


def test_the_older_functions(client: openai.OpenAI) -> None:
    made = answer(client, False, functions=[WEATHER["function"]], function_call={"name": "get_weather"})
    assert made.finish_reason == "function_call"
    assert json.loads(made.message.function_call.arguments)["city"] in ("Paris", "Rome")


def test_a_call_that_the_limit_cuts_is_no_call(client: openai.OpenAI) -> None:
    cut = answer(client, False, tools=[WEATHER], tool_choice="required", max_tokens=12)
    assert cut.finish_reason == "length" and not cut.message.tool_calls and "get_" in cut.message.content


def test_none_makes_no_call(client: openai.OpenAI) -> None:
    made = answer(client, False, tools=[WEATHER], tool_choice="none", max_tokens=30)
    assert not made.message.tool_calls and made.message.content


# Reasoning


def budgeted(budget: int, **fields: Any) -> dict[str, Any]:
    return {"extra_body": {"thinking_token_budget": budget, "return_adjustments": True} | fields}


@pytest.mark.parametrize("budget", [0, 5])
def test_a_budget_closes_the_reasoning(thinking: openai.OpenAI, budget: int) -> None:
    whole = thinking.chat.completions.create(**(GREEDY | {"max_tokens": 40} | budgeted(budget)))
    message, usage = whole.choices[0].message.to_dict(), whole.usage
    assert usage is not None and usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == budget
    assert message["content"] and "think" not in str(message["content"])
    assert bool(message.get("reasoning")) == bool(budget)
    assert any(told["field"] == "thinking_token_budget" for told in told_of(whole))


def test_a_grammar_begins_after_the_reasoning(thinking: openai.OpenAI) -> None:
    made = answer(thinking, False, max_tokens=40, **budgeted(6, regex="(yes|no)"))
    assert made.message.content in ("yes", "no") and made.finish_reason == "stop"
    assert made.message.reasoning_content == made.message.reasoning != ""


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_required_call_comes_after_the_reasoning(thinking: openai.OpenAI, streamed: bool) -> None:
    made = answer(thinking, streamed, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, **budgeted(6))
    assert made.finish_reason == "tool_calls" and names_of(made) == ["get_weather"]
    assert made.message.reasoning


def test_reasoning_can_be_left_out_or_left_in_the_text(thinking: openai.OpenAI) -> None:
    short: dict[str, Any] = {"max_tokens": 30}
    hidden = answer(thinking, False, **short, **budgeted(5, include_reasoning=False)).message.to_dict()
    assert "reasoning" not in hidden and hidden["content"]
    undivided = answer(thinking, False, **short, **budgeted(5, separate_reasoning=False)).message.to_dict()
    assert "</think>" in undivided["content"] and "reasoning" not in undivided


def test_stop_strings_spare_reasoning_unless_asked(thinking: openai.OpenAI) -> None:
    free = answer(thinking, False, max_tokens=20).message.to_dict()["reasoning"]
    stop = free.split()[1]
    spared = answer(thinking, False, max_tokens=20, stop=[stop])
    assert spared.finish_reason == "length" and stop in spared.message.reasoning
    cut = answer(thinking, False, max_tokens=20, stop=[stop], extra_body={"stop_in_reasoning": True})
    assert cut.finish_reason == "stop" and stop not in cut.message.reasoning


def test_the_contract_says_which_parsers_run_and_why(thinker: Server) -> None:
    deployment = thinker.http.get("/v1/contract").json()["deployment"]
    assert (
        deployment["tool_call_parser"] == "hermes"
        and "the chat template holds" in deployment["tool_call_parser_reason"]
    )
    assert deployment["reasoning_parser"] == "deepseek-r1"
    (warning,) = deployment["parser_warnings"]
    assert "--reasoning-parser deepseek-r1" in warning and warning in thinker.errors()
    assert thinker.http.get("/server_info").json()["tool_call_parser"] == "hermes"
