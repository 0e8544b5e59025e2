"""The official SDK reads every answer into its typed models, strictly."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.http_frontend.fakes import Served
from tests.http_frontend.test_tools import CALL, TOOL

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [TOOL]


def with_sdk(served: Served, use: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        transport: Any = httpx.ASGITransport(app=served.app)
        http: Any = httpx.AsyncClient(transport=transport)
        async with (
            http,
            openai.AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="x", http_client=http, max_retries=0) as client,
        ):
            return await use(client)

    return asyncio.run(run())


def test_chat(served: Served) -> None:
    answer = with_sdk(
        served,
        lambda client: client.chat.completions.create(
            model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=2, n=2
        ),
    )
    strict = ChatCompletion.model_validate(answer.to_dict(), strict=True)
    assert strict.choices[1].message.content == "Hello world"
    assert strict.choices[0].logprobs is not None and strict.choices[0].logprobs.content is not None
    assert strict.usage is not None and strict.usage.prompt_tokens_details is not None
    assert strict.usage.prompt_tokens_details.cached_tokens == 4


def test_chat_stream(served: Served) -> None:
    async def use(client: openai.AsyncOpenAI) -> list[ChatCompletionChunk]:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, logprobs=True
        )
        return [chunk async for chunk in stream]

    chunks = [ChatCompletionChunk.model_validate(chunk.to_dict(), strict=True) for chunk in with_sdk(served, use)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello world"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 3


def test_the_helper_that_adds_a_stream_up(serve: Any) -> None:
    served = serve(tool_call_parser="hermes")
    served.ring.words = CALL

    async def use(client: openai.AsyncOpenAI) -> Any:
        async with client.chat.completions.stream(model="tiny", messages=MESSAGES, tools=TOOLS) as stream:
            async for _ in stream:
                pass
            return await stream.get_final_completion()

    (choice,) = with_sdk(served, use).choices
    assert choice.finish_reason == "tool_calls"
    assert (
        choice.message.tool_calls[0].function.name == "f"
        and choice.message.tool_calls[0].function.arguments == '{"a": 1}'
    )


@pytest.mark.parametrize("stream", [False, True])
def test_completions(served: Served, stream: bool) -> None:
    async def use(client: openai.AsyncOpenAI) -> list[Completion]:
        if not stream:
            return [await client.completions.create(model="tiny", prompt="x", logprobs=1, best_of=2)]
        chunks = await client.completions.create(model="tiny", prompt="x", logprobs=1, stream=True)
        return [chunk async for chunk in chunks]

    answers = with_sdk(served, use)
    for answer in answers:
        fields = answer.to_dict()
        for choice in fields["choices"]:
            # The SDK's model of a completion has no null here, though the API's streams do.
            if choice["finish_reason"] is None:
                choice["finish_reason"] = "stop"
        Completion.model_validate(fields, strict=True)
    assert "".join(answer.choices[0].text for answer in answers) == "Hello world"


def test_errors_have_their_classes(served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        with_sdk(served, lambda client: client.chat.completions.create(model="none", messages=MESSAGES))
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as bad:
        with_sdk(served, lambda client: client.chat.completions.create(model="tiny", messages=[]))
    assert bad.value.param == "messages"
    served.ring.error_after = 2

    async def use(client: openai.AsyncOpenAI) -> None:
        async for _ in await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True):
            pass

    with pytest.raises(openai.APIError, match="out of memory"):
        with_sdk(served, use)


def test_models(served: Served) -> None:
    async def use(client: openai.AsyncOpenAI) -> Any:
        return [model async for model in client.models.list()], await client.models.retrieve("tiny")

    listed, one = with_sdk(served, use)
    assert [model.id for model in listed] == ["tiny", "org/tiny:v2"] and one.id == "tiny"
