"""Chat completions: the whole answer, the order of a stream, what reaches the engine."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorInfo
from protocol.links import TokenizerInbox, decoder, encode
from protocol.requests import Adjustment, ChatPrompt
from tests.http_frontend.fakes import PROMPT_TOKENS, Served, events


def test_a_whole_answer(served: Served) -> None:
    body = served.chat().json()
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "Hello world", "refusal": None}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens"] == PROMPT_TOKENS
    assert body["usage"]["completion_tokens"] == 3
    assert body["usage"]["total_tokens"] == PROMPT_TOKENS + 3
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def test_a_stream_keeps_openais_order(served: Served) -> None:
    response = served.chat(stream=True, n=2, stream_options={"include_usage": True})
    *chunks, done = events(response)
    assert done == "[DONE]"
    roles = [chunk["choices"][0]["delta"].get("role") for chunk in chunks[:2]]
    assert roles == ["assistant", "assistant"]
    assert [chunk["choices"][0]["index"] for chunk in chunks[:2]] == [0, 1]
    for index in (0, 1):
        own = [chunk["choices"][0] for chunk in chunks[2:-1] if chunk["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in own) == "Hello world"
        assert own[-1]["delta"] == {} and own[-1]["finish_reason"] == "stop"
        assert all(choice["finish_reason"] is None for choice in own[:-1])
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 6
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


@pytest.mark.parametrize(
    "content", ["Hello you", [{"type": "text", "text": "Hello "}, {"type": "text", "text": "you"}]]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prediction_is_passed_on_and_what_came_of_it_is_counted(served: Served, content: Any, stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    response = served.chat(n=2, prediction={"type": "content", "content": content}, stream=stream, **options)
    assert "x-candor-adjustments" not in response.headers
    assert served.ring.requests[0].prediction == "Hello you"
    usage = events(response)[-2]["usage"] if stream else response.json()["usage"]
    details = usage["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (4, 2)


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("Hello", "prediction"),
        ({"content": "Hello"}, "prediction.type"),
        ({"type": "text", "content": "Hello"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": [{"type": "image_url"}]}, "prediction.content[0].type"),
    ],
)
def test_a_prediction_that_is_none_is_named(served: Served, prediction: Any, param: str) -> None:
    response = served.chat(prediction=prediction)
    assert response.status_code == 400 and response.json()["error"]["param"] == param
    assert not served.ring.requests


def test_what_reaches_the_engine(served: Served) -> None:
    served.chat(
        top_p=0.5,
        top_k=-1,
        seed=3,
        stop="x",
        max_completion_tokens=9,
        logit_bias={"5": 2},
        cache_salt="s",
        logprobs=True,
        top_logprobs=2,
    )
    (request,) = served.ring.requests
    assert isinstance(request.prompt, ChatPrompt) and request.prompt.add_generation_prompt
    sampling = request.sampling
    assert (sampling.top_p, sampling.top_k, sampling.seed, sampling.max_tokens, sampling.logprobs) == (0.5, 0, 3, 9, 2)
    assert sampling.logit_bias == {5: 2.0}
    assert request.detokenize.stop == ("x",) and request.cache_salt == "s"
    assert request.max_tokens_field == "max_completion_tokens"


def test_greedy_choices_are_computed_once_and_told(served: Served) -> None:
    response = served.chat(n=3, temperature=0)
    assert served.ring.requests[0].n == 1
    body = response.json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 9
    assert '"field":"n"' in response.headers["x-candor-adjustments"]


def test_a_refusal_is_a_response_of_its_own_even_for_a_stream(served: Served) -> None:
    served.ring.refusal = ErrorInfo(
        "queue is full", 503, "service_unavailable_error", code="queue_full", retry_after_s=2.5
    )
    response = served.chat(stream=True)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "3"
    assert response.json()["error"]["code"] == "queue_full"


def test_an_error_after_the_first_frame(served: Served) -> None:
    served.ring.error_after = 1
    data = events(served.chat(stream=True))
    assert data[-1] == "[DONE]"
    assert data[-2]["error"]["code"] == "oom"
    assert not any(choice["finish_reason"] for chunk in data[:-2] for choice in chunk["choices"])
    assert served.chat().status_code == 500


def test_logprobs_have_openais_shape(served: Served) -> None:
    content = served.chat(logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"]["content"]
    assert content[0] == {
        "token": "Hello",
        "logprob": -0.5,
        "bytes": list(b"Hello"),
        "top_logprobs": [{"token": "t0", "logprob": -1.0, "bytes": list(b"t0")}],
    }
    streamed = [
        entry
        for chunk in events(served.chat(logprobs=True, top_logprobs=1, stream=True))[:-1]
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content


@pytest.mark.parametrize("stream", [False, True])
def test_adjustments_from_behind_are_told_and_strict_refuses_them(served: Served, stream: bool) -> None:
    served.ring.adjustments = (Adjustment("chat_template_kwargs.x", "ignored", "the template never reads it"),)
    response = served.chat(stream=stream)
    assert "chat_template_kwargs.x" in response.headers["x-candor-adjustments"]
    served.ring.silent = True
    strict = served.call(
        "POST",
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "x"}], "stream": stream},
        headers={"x-candor-strict": "1"},
    )
    assert strict.status_code == 400 and strict.json()["error"]["param"] == "chat_template_kwargs.x"
    assert served.ring.aborts


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content[0].image_url"),
    ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"n": 0}, "n"),
    ({"n": 1.5}, "n"),
    ({"presence_penalty": 10}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2**63}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
    ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
    ({"stop": 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["x"] * 33}, "stop"),
    ({"stream": "perhaps"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"logit_bias": [1, 2]}, "logit_bias"),
    ({"logit_bias": {"abc": 1}}, "logit_bias.abc"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
    ({"logit_bias": {"5": 1e9}}, "logit_bias.5"),
    ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": -2, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": -1, "logprobs": True, "max_tokens": 5, "stream": True}, "top_logprobs"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": "text"}}}, "response_format.json_schema.schema"),
    ({"regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    ({"guided_json": "{"}, "guided_json"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [1, "x"]}, "stop_token_ids[1]"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "a/b"}, "cache_salt"),
    ({"rid": "a b"}, "rid"),
    ({"routed_dp_rank": 1}, "routed_dp_rank"),
    ({"data_parallel_rank": 3}, "data_parallel_rank"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"lora_path": "x"}, "lora_path"),
    ({"model": "unknown"}, "model"),
    ({"model": "tiny:adapter"}, "model"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"thinking_token_budget": 5}, "thinking_token_budget"),
    ({"chat_template_kwargs": {"a": [2**64]}}, "chat_template_kwargs"),
    ({"documents": [{"n": -(2**63) - 1}]}, "documents"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 2**64}}}]}, "tools"),
    ({"functions": [{"name": "f", "parameters": {"maximum": 2**64}}]}, "functions"),
    ({"functions": [{"name": "f"}], "tool_choice": "auto"}, "tool_choice"),
    ({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}, "response_format.json_schema"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
]  # fmt: skip


MISPLACED: list[tuple[dict[str, Any], str]] = [
    ({"role": "user", "content": "x", "reasoning_content": "y"}, "reasoning_content"),
    ({"role": "user", "content": "x", "function_call": {"name": "f"}}, "function_call"),
    ({"role": "user", "content": "x", "tool_call_id": "c"}, "tool_call_id"),
    ({"role": "assistant", "content": "x", "refusal": "no"}, "refusal"),
    ({"role": "assistant", "content": "x", "prefix": True}, "prefix"),
    ({"role": "assistant", "content": "x", "reasoning": "a", "reasoning_content": "b"}, "reasoning"),
]


@pytest.mark.parametrize(("message", "field"), MISPLACED)
def test_a_field_that_its_message_can_not_have_is_told(served: Served, message: dict[str, Any], field: str) -> None:
    response = served.chat(messages=[message, {"role": "user", "content": "Hi"}])
    (told,) = msgspec.json.decode(response.headers["x-candor-adjustments"])
    assert (told["field"], told["action"]) == (f"messages[0].{field}", "ignored")
    usual = {"role": "assistant", "content": "x", "refusal": None, "reasoning": "a", "prefix": False}
    assert "x-candor-adjustments" not in served.chat(messages=[usual, {"role": "user", "content": "Hi"}]).headers


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"request_id": "a", "rid": "b"}, "rid"),
        ({"cache_salt": "a", "extra_key": "b"}, "extra_key"),
        ({"routed_dp_rank": 0, "data_parallel_rank": 1}, "data_parallel_rank"),
    ],
)
def test_of_two_names_of_one_thing_the_second_is_told(served: Served, fields: dict[str, Any], ignored: str) -> None:
    (told,) = msgspec.json.decode(served.chat(**fields).headers["x-candor-adjustments"])
    assert told["field"] == ignored
    same = dict.fromkeys(fields, next(iter(fields.values())))
    assert "x-candor-adjustments" not in served.chat(**same).headers


NUMBERS = st.integers(-(2**70), 2**70) | st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1])
SCALARS = st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


@settings(max_examples=60, deadline=None)
@given(value=JSON)
def test_what_a_body_may_hold_is_refused_or_can_be_read_behind(shared: Served, value: Any) -> None:
    """The tokenizer manager drops a frame that it can't read, and the request would wait for ever."""
    shared.ring.sent.clear()
    tool = {"type": "function", "function": {"name": "f", "parameters": {"default": value}}}
    status = shared.chat(chat_template_kwargs={"x": value}, documents=[{"x": value}], tools=[tool]).status_code
    assert status == (200 if shared.ring.sent else 400)
    reader = decoder(TokenizerInbox)
    assert [reader.decode(encode(message)) for message in shared.ring.sent] == shared.ring.sent
    assert shared.front.in_flight.idle


@pytest.mark.parametrize(("fields", "param"), BAD_FIELDS, ids=lambda value: str(value)[:60])
def test_bad_fields_are_named_and_reach_nobody(served: Served, fields: dict[str, Any], param: str) -> None:
    response = served.chat(**fields)
    assert 400 <= response.status_code < 500
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param and param in error["message"] and error["code"]
    assert not served.ring.sent
    assert served.chat().status_code == 200
