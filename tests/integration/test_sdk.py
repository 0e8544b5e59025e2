"""The official SDK against a real model: whole answers and streams, tools, logprobs, structured output."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.integration.servers import PATIENCE_S, Server

FOX: Any = [{"role": "user", "content": "What does the fox say?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=PATIENCE_S) as one:
        yield one


def test_a_chat_whole_and_streamed_is_the_same(client: openai.OpenAI) -> None:
    settings: Any = {"model": "smollm2", "messages": FOX, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**settings, logprobs=True, top_logprobs=2)
    ChatCompletion.model_validate(whole.to_dict(), strict=True)
    (choice,) = whole.choices
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in choice.logprobs.content)
    chunks = list(client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.to_dict(), strict=True)
    *pieces, last = chunks
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == choice.message.content
    assert last.choices == [] and last.usage is not None and whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens == 12
    # The second time, the prompt's whole pages come out of the cache.
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens // 16 * 16


def test_a_predicted_answer_is_the_same_answer(client: openai.OpenAI) -> None:
    settings: Any = {"model": "smollm2", "messages": FOX, "max_tokens": 48, "temperature": 0.7, "seed": 3}
    free = client.chat.completions.create(**settings)
    text = free.choices[0].message.content
    prediction: Any = {"type": "content", "content": text}
    predicted = client.chat.completions.create(**settings, prediction=prediction)
    assert predicted.choices[0].message.content == text
    assert predicted.usage is not None and predicted.usage.completion_tokens_details is not None
    assert (predicted.usage.completion_tokens_details.accepted_prediction_tokens or 0) > 24


def test_completions_of_several_prompts(client: openai.OpenAI) -> None:
    prompts = ["One, two,", "Monday, Tuesday,"]
    settings: Any = {"model": "smollm2", "max_tokens": 4, "temperature": 0}
    both = client.completions.create(prompt=prompts, **settings)
    assert [choice.index for choice in both.choices] == [0, 1]
    assert [choice.text for choice in both.choices] == [
        client.completions.create(prompt=prompt, **settings).choices[0].text for prompt in prompts
    ]


def test_a_required_tool_is_called_as_declared(client: openai.OpenAI) -> None:
    settings: Any = {"model": "smollm2", "messages": FOX, "tools": [WEATHER], "tool_choice": "required"}
    settings |= {"parallel_tool_calls": False, "max_tokens": 80, "temperature": 1.0, "seed": 5}
    answer = client.chat.completions.create(**settings)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    with client.chat.completions.stream(**settings) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.message.tool_calls is not None and streamed.finish_reason == "tool_calls"
    for call in (*choice.message.tool_calls, *streamed.message.tool_calls):
        assert call.type == "function" and call.function.name == "get_weather"
        jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])
    usage = client.chat.completions.create(**settings).usage
    assert usage is not None and usage.prompt_tokens_details is not None
    # The text that every call begins with is in the cache as well, but is no part of the prompt.
    assert 0 < (usage.prompt_tokens_details.cached_tokens or 0) <= usage.prompt_tokens


def test_a_schema_binds_every_choice(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}}, "required": ["n"]}
    response_format: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(
        model="smollm2", messages=FOX, response_format=response_format, n=3, temperature=1.5, seed=1, max_tokens=60
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), schema)


def test_the_grammar_ends_an_answer_that_min_tokens_would_go_on_with(server: Server) -> None:
    body = {"messages": FOX, "regex": "(yes|no)", "min_tokens": 30, "max_tokens": 60}
    response = server.post("/v1/chat/completions", body | {"return_adjustments": True})
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] in ("yes", "no")
    assert [told["field"] for told in response.json()["adjustments"]] == ["min_tokens"]


class Animal(BaseModel):
    """An animal."""

    name: Literal["fox", "dog"]
    legs: int = Field(ge=0, le=8)
    tame: bool


@pytest.mark.parametrize("output", [NativeOutput(Animal), ToolOutput(Animal)], ids=["json_schema", "tool"])
def test_an_agent_library_extracts_a_typed_object(server: Server, output: Any) -> None:
    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="x")
    agent = Agent(OpenAIChatModel("smollm2", provider=provider), output_type=output)
    animal = agent.run_sync("The quick brown fox.", model_settings={"max_tokens": 120, "temperature": 0.0}).output
    assert isinstance(animal, Animal)


def test_errors_have_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="none", messages=FOX)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="smollm2", messages=FOX, temperature=9)
    assert refused.value.param == "temperature"


def test_a_disconnected_stream_frees_its_row_and_pages(server: Server) -> None:
    body = {"prompt": "x", "stream": True, "max_tokens": 4000, "ignore_eos": True}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    everything_is_free(server)


def test_an_abort_ends_the_answer_and_is_told(server: Server) -> None:
    body = {"prompt": "x", "stream": True, "max_tokens": 4000, "ignore_eos": True, "request_id": "to-be-ended"}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        assert "choices" in json.loads(next(lines).removeprefix("data: "))
        assert (
            httpx.post(f"{server.url}/abort_request", json={"rid": "to-be-ended"}, timeout=PATIENCE_S).status_code
            == 200
        )
        *_, last, done = list(lines)
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "aborted"
    assert done == "data: [DONE]"
    everything_is_free(server)


def everything_is_free(server: Server) -> None:
    scheduler = server.wait_idle()
    assert scheduler["check"] == "every page has one owner"
    assert scheduler["free_pages"] == scheduler["total_pages"]
