"""Tools and reasoning: what is rendered, what binds the answer, how calls come back."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from http_frontend.contract.review import Review
from http_frontend.openai.tools import tool_use_of
from protocol.outputs import Finish
from protocol.requests import ChatPrompt
from runtime.status_board import StatusBoard
from tests.http_frontend.fakes import Served, events, make_config

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
CALL = ["Let me see. ", "<tool_call>\n", '{"name": "f", "arg', 'uments": {"a": 1}}', "\n</tool_call>"]


@pytest.fixture
def hermes(serve: Any) -> Served:
    made: Served = serve(tool_call_parser="hermes")
    made.ring.words = CALL
    return made


def calls_in(chunks: list[Any]) -> list[Any]:
    return [call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", ())]


def test_a_call_in_a_whole_answer(hermes: Served) -> None:
    choice = hermes.chat(tools=[TOOL]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["function"]["name"] == "f" and call["id"]
    assert msgspec.json.decode(call["function"]["arguments"]) == {"a": 1}
    assert choice["message"]["content"].strip() == "Let me see."
    request = hermes.ring.requests[0]
    assert isinstance(request.prompt, ChatPrompt) and request.prompt.tools == [TOOL]
    assert "<tool_call>" in request.detokenize.visible_special_tokens


def test_a_call_in_a_stream(hermes: Served) -> None:
    *chunks, _ = events(hermes.chat(tools=[TOOL], stream=True, n=2))
    for index in (0, 1):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        first, *rest = calls_in(own)
        assert (
            first["index"] == 0 and first["type"] == "function" and first["function"] == {"name": "f", "arguments": ""}
        )
        assert all(set(call) == {"index", "function"} for call in rest)
        assert msgspec.json.decode("".join(call["function"]["arguments"] for call in rest)) == {"a": 1}
        assert own[-1]["choices"][0]["finish_reason"] == "tool_calls" and own[-1]["choices"][0]["delta"] == {}
    assert len({calls_in([chunk])[0]["id"] for chunk in chunks if any("id" in call for call in calls_in([chunk]))}) == 2


def test_copies_of_a_greedy_answer_have_call_ids_of_their_own(hermes: Served) -> None:
    choices = hermes.chat(tools=[TOOL], n=2, temperature=0).json()["choices"]
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in choices}) == 2


def test_a_cut_call_is_no_call(hermes: Served) -> None:
    hermes.ring.words, hermes.ring.finish = CALL[:3], Finish("length")
    choice = hermes.chat(tools=[TOOL]).json()["choices"][0]
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]


def test_none_leaves_the_text_alone(hermes: Served) -> None:
    choice = hermes.chat(tools=[TOOL], tool_choice="none").json()["choices"][0]
    assert choice["message"]["content"] == "".join(CALL) and choice["finish_reason"] == "stop"
    assert hermes.ring.requests[0].sampling.grammar is None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
@pytest.mark.parametrize("parser", ["hermes", None])
def test_required_is_a_constraint_with_or_without_a_parser(serve: Any, choice: Any, parser: str | None) -> None:
    served: Served = serve(tool_call_parser=parser)
    served.chat(tools=[TOOL], tool_choice=choice)
    grammar = served.ring.requests[0].sampling.grammar
    assert grammar is not None and grammar.kind == "structural_tag" and grammar.field == "tool_choice"
    served.chat(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    if choice == "required":
        assert served.ring.requests[1].sampling.grammar != grammar


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "tool_choice": "none"}])
def test_frames_of_a_turn_are_taken_off_where_no_call_is_asked_for(serve: Any, fields: dict[str, Any]) -> None:
    served: Served = serve(tool_call_parser="gpt-oss")
    served.ring.words = ["<|channel|>final", "<|message|>Hel", "lo<|return|>"]
    choice = served.chat(**fields).json()["choices"][0]
    assert choice["message"]["content"] == "Hello" and choice["finish_reason"] == "stop"
    assert "<|channel|>" in served.ring.requests[0].detokenize.visible_special_tokens


def test_a_framed_call_that_was_ruled_out_does_not_reach_the_client(serve: Any) -> None:
    served: Served = serve(tool_call_parser="gpt-oss")
    served.ring.words = ["<|channel|>commentary to=functions.f<|message|>", '{"a": 1}<|call|>']
    choice = served.chat(tools=[TOOL], tool_choice="none").json()["choices"][0]
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"
    assert served.chat(tools=[TOOL]).json()["choices"][0]["finish_reason"] == "tool_calls"


def test_markers_that_are_tokens_bind_the_answer_as_tokens(tmp_path: Path) -> None:
    board = StatusBoard.create(tmp_path / "board", 1)
    config = msgspec.structs.replace(make_config(tmp_path, tool_call_parser="hermes"), marker_tokens=("<tool_call>",))
    served = Served(config, board)
    request = tool_use_of(
        {"tools": [TOOL], "tool_choice": "required"}, None, served.front.parsers, Review(config, False)
    )
    assert request.grammar is not None and '"token": "<tool_call>"' in request.grammar.text
    served.front.close()
    board.close()


def test_auto_without_a_parser_is_told(served: Served) -> None:
    response = served.chat(tools=[TOOL])
    assert response.status_code == 200 and "--tool-call-parser" in response.headers["x-candor-adjustments"]


def test_the_older_functions(hermes: Served) -> None:
    body = hermes.chat(functions=[TOOL["function"]], function_call={"name": "f"}).json()["choices"][0]
    assert body["finish_reason"] == "function_call"
    assert body["message"]["function_call"]["name"] == "f" and "tool_calls" not in body["message"]
    *chunks, _ = events(hermes.chat(functions=[TOOL["function"]], stream=True))
    deltas = [chunk["choices"][0]["delta"].get("function_call") for chunk in chunks]
    assert msgspec.json.decode("".join(delta["arguments"] for delta in deltas if delta)) == {"a": 1}


def test_custom_tools(hermes: Served) -> None:
    hermes.ring.words = ['<tool_call>\n{"name": "sh", "arguments": {"input": "ls"}}', "\n</tool_call>"]
    fields: Any = {"tools": [{"type": "custom", "custom": {"name": "sh"}}]}
    (call,) = hermes.chat(**fields).json()["choices"][0]["message"]["tool_calls"]
    assert call["type"] == "custom" and call["custom"] == {"name": "sh", "input": "ls"}
    start, rest = calls_in(events(hermes.chat(stream=True, **fields))[:-1])
    assert start["custom"] == {"name": "sh", "input": ""} and rest["custom"] == {"input": "ls"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tools": "x"}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "no"}}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [TOOL], "tool_choice": "required", "regex": "a"}, "regex"),
    ],
)
def test_bad_tools_are_named(served: Served, fields: dict[str, Any], param: str) -> None:
    response = served.chat(**fields)
    assert response.status_code == 400 and response.json()["error"]["param"] == param
    assert not served.ring.sent


@pytest.mark.parametrize(("excluded", "rendered"), [(False, [TOOL]), (True, None)])
def test_none_can_keep_tools_out_of_the_prompt(serve: Any, excluded: bool, rendered: Any) -> None:
    served: Served = serve(tool_call_parser="hermes", exclude_tools_when_none=excluded)
    served.chat(tools=[TOOL], tool_choice="none")
    prompt = served.ring.requests[0].prompt
    assert isinstance(prompt, ChatPrompt) and prompt.tools == rendered


@pytest.mark.parametrize(("rule", "names"), [("forward", ["g"]), ("drop", [])])
def test_calls_of_unknown_tools(serve: Any, rule: str, names: list[str]) -> None:
    served: Served = serve(tool_call_parser="hermes", unknown_tools=rule)
    served.ring.words = ['<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>']
    choice = served.chat(tools=[TOOL]).json()["choices"][0]
    assert [call["function"]["name"] for call in choice["message"].get("tool_calls", ())] == names
    assert choice["finish_reason"] == ("tool_calls" if names else "stop")


def test_tool_choice_none_without_tools(served: Served) -> None:
    assert served.chat(tool_choice="none").status_code == 200


def test_an_answer_with_calls_can_be_sent_back(hermes: Served) -> None:
    message = hermes.chat(tools=[TOOL]).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "42"}
    question = {"role": "user", "content": "x"}
    response = hermes.chat(messages=[question, message, result], tools=[TOOL])
    assert response.status_code == 200 and "x-candor-adjustments" not in response.headers


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        ("both", {"reasoning_content", "reasoning"}),
        ("reasoning", {"reasoning"}),
        ("reasoning_content", {"reasoning_content"}),
    ],
)
def test_reasoning_is_split_off_under_its_names(serve: Any, flag: str, names: set[str]) -> None:
    served: Served = serve(reasoning_parser="qwen3", reasoning_field=flag)
    served.ring.words = ["<think>", "why", "</think>", "so"]
    message = served.chat().json()["choices"][0]["message"]
    assert message["content"] == "so"
    assert {name: message[name] for name in message if name.startswith("reasoning")} == dict.fromkeys(names, "why")
    *chunks, _ = events(served.chat(stream=True))
    streamed = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert dict.fromkeys(names, "why") in streamed
    assert served.ring.requests[0].reasoning is not None


def test_reasoning_can_be_hidden_or_left_in_the_text(serve: Any) -> None:
    served: Served = serve(reasoning_parser="qwen3")
    served.ring.words = ["<think>", "why", "</think>", "so"]
    assert "reasoning" not in served.chat(include_reasoning=False).json()["choices"][0]["message"]
    assert "why" in served.chat(separate_reasoning=False).json()["choices"][0]["message"]["content"]


def test_held_back_text_still_carries_its_logprobs(hermes: Served) -> None:
    *chunks, _ = events(hermes.chat(tools=[TOOL], stream=True, logprobs=True))
    tokens = [
        entry["token"] for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert tokens == CALL
