"""SGLang's /generate."""

from typing import Any

import pytest

from tests.http_frontend.fakes import PROMPT_TOKENS, Served, events


def generate(served: Served, **fields: Any) -> Any:
    return served.post("/generate", {"text": "Once", "sampling_params": {"temperature": 0.5}} | fields)


def test_one_prompt_is_one_object(served: Served) -> None:
    body = generate(served, rid="r1").json()
    assert body["text"] == "Hello world" and body["output_ids"] == [100, 101, 102]
    meta = body["meta_info"]
    assert meta["id"] == "r1" and meta["finish_reason"] == {"type": "stop", "matched": None}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (PROMPT_TOKENS, 3, 4)


def test_a_batch_is_a_list_with_parameters_and_ids_of_each(served: Served) -> None:
    parameters = [{"max_new_tokens": 1}, {"max_new_tokens": 2}]
    body = generate(served, text=["a", "b"], sampling_params=parameters, rid=["x", "y"]).json()
    assert [one["text"] for one in body] == ["Hello", "Hello wor"]
    assert [one["meta_info"]["id"] for one in body] == ["x", "y"]
    assert body[0]["meta_info"]["finish_reason"] == {"type": "length", "length": 1}
    assert [request.request_id.partition("~")[0] for request in served.ring.requests] == ["0-x", "0-y"]


def test_streamed_text_is_cumulative_unless_asked_otherwise(served: Served) -> None:
    data = events(generate(served, stream=True))
    assert [chunk["text"] for chunk in data[:-1]] == ["Hello", "Hello wor", "Hello world"]
    data = events(generate(served, stream=True, incremental_streaming_output=True))
    assert [chunk["text"] for chunk in data[:-1]] == ["Hello", " wor", "ld"]


def test_logprobs_of_prompt_and_output(served: Served) -> None:
    meta = generate(
        served, return_logprob=True, logprob_start_len=0, top_logprobs_num=1, return_text_in_logprobs=True
    ).json()["meta_info"]
    assert meta["output_token_logprobs"][0] == [-0.5, 100, "Hello"]
    assert meta["output_top_logprobs"][0] == [[-1.0, 0, "t0"]]
    assert meta["input_token_logprobs"][0] is None and len(meta["input_token_logprobs"]) == PROMPT_TOKENS


def test_several_greedy_choices_are_copied(served: Served) -> None:
    body = generate(served, sampling_params={"temperature": 0, "n": 2}).json()
    assert [one["index"] for one in body] == [0, 1] and served.ring.requests[0].n == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": None}, "text"),
        ({"input_ids": [1]}, "text"),
        ({"sampling_params": {"temperature": 3}}, "sampling_params.temperature"),
        ({"sampling_params": {"max_new_tokens": 0}}, "sampling_params.max_new_tokens"),
        ({"sampling_params": [{}, {}]}, "sampling_params"),
        ({"rid": ["a", "b"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["a", "a"]}, "rid"),
        ({"sampling_params": {"regex": "a", "ebnf": "b"}}, "ebnf"),
    ],
)
def test_bad_fields_are_named(served: Served, fields: dict[str, Any], param: str) -> None:
    response = generate(served, **fields)
    assert response.status_code == 400 and response.json()["error"]["param"] == param
    assert not served.ring.sent
