"""Completions: batches, echo, scoring, logprobs, best_of, streams."""

from typing import Any

import pytest

from http_frontend.openai.logprobs import FirstToken, Place, completion_logprobs
from protocol.outputs import Finish, TokenLogprob
from protocol.requests import TextPrompt, TokensPrompt
from tests.http_frontend.fakes import PROMPT_TOKENS, Served, events


def test_a_batch_keeps_its_order(served: Served) -> None:
    body = served.complete(prompt=["one", "two", "three"], n=2).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert body["usage"]["prompt_tokens"] == 3 * PROMPT_TOKENS
    assert body["usage"]["completion_tokens"] == 18
    prompts = [request.prompt for request in served.ring.requests]
    assert prompts == [TextPrompt(text, field=f"prompt[{place}]") for place, text in enumerate(("one", "two", "three"))]
    assert len({request.request_id for request in served.ring.requests}) == 3


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7]]])
def test_token_ids_are_a_prompt(served: Served, prompt: Any) -> None:
    body = served.complete(prompt=prompt).json()
    assert isinstance(served.ring.requests[0].prompt, TokensPrompt)
    assert body["usage"]["prompt_tokens"] == 3 and len(body["choices"]) == 1


def test_a_streamed_batch_ends_for_each(served: Served) -> None:
    data = events(served.complete(prompt=["a", "b"], stream=True, stream_options={"include_usage": True}))
    assert data.count("[DONE]") == 1 and data[-1] == "[DONE]"
    assert data[-2]["choices"] == [] and data[-2]["usage"]["completion_tokens"] == 6
    for index in (0, 1):
        own = [chunk["choices"][0] for chunk in data[:-2] if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in own) == "Hello world"
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]
        assert own[-1]["text"] == ""


def test_continuous_usage_stands_on_every_chunk(served: Served) -> None:
    *chunks, _ = events(served.complete(stream=True, stream_options={"continuous_usage_stats": True}))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3, 3]


def test_echo_with_logprobs_scores_the_prompt(served: Served) -> None:
    served.ring.words = ["!"]
    body = served.complete(prompt="Xpppppp", echo=True, logprobs=1, max_tokens=0).json()
    (choice,) = body["choices"]
    assert choice["text"] == "Xpppppp" and choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0 and body["usage"]["total_tokens"] == PROMPT_TOKENS
    scores = choice["logprobs"]
    assert scores["tokens"] == ["X", *"pppppp"]
    assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
    assert scores["text_offset"] == list(range(7))
    assert served.ring.requests[0].sampling.max_tokens == 1


@pytest.mark.parametrize("stream", [False, True])
def test_echo_repeats_the_prompt_with_running_offsets(served: Served, stream: bool) -> None:
    response = served.complete(prompt="Xpppppp", echo=True, logprobs=0, stream=stream)
    if stream:
        choices = [chunk["choices"][0] for chunk in events(response)[:-1]]
    else:
        choices = response.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == "XppppppHello world"
    offsets = [offset for choice in choices if choice["logprobs"] for offset in choice["logprobs"]["text_offset"]]
    assert offsets == [*range(7), 7, 12, 16]


@pytest.mark.parametrize("stream", [False, True])
def test_a_scored_prompt_ends_by_length_whatever_was_drawn(served: Served, stream: bool) -> None:
    served.ring.words, served.ring.finish = ["x"], Finish("stop", "x")
    response = served.complete(max_tokens=0, echo=True, logprobs=0, stream=stream)
    choice = events(response)[-2]["choices"][0] if stream else response.json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)


def test_a_prompt_of_one_token_is_that_token(served: Served) -> None:
    response = served.complete(prompt=[1], echo=True, logprobs=0, return_tokens_as_token_ids=True, max_tokens=0)
    scores = response.json()["choices"][0]["logprobs"]
    assert scores["tokens"][0] == "token_id:1" and "prompt_token_ids" not in response.json()["choices"][0]


def test_tokens_inside_a_character_have_its_place() -> None:
    entries = [
        TokenLogprob(token, 1, -0.5, bytes_)
        for token, bytes_ in (("é", b"\xc3\xa9"), ("\ufffd", b"\xf0\x9f"), ("\ufffd\ufffd", b"\x99\x82"), ("!", b"!"))
    ]
    whole = completion_logprobs(entries, Place(3), as_ids=False)
    assert whole["text_offset"] == [3, 4, 4, 5]
    place = Place(3)
    pieces = [completion_logprobs([entry], place, as_ids=False)["text_offset"] for entry in entries]
    assert pieces == [[3], [4], [4], [5]] and place.characters == 6
    scored = completion_logprobs([None, *entries], Place(), False, FirstToken("ab", b"ab"))
    assert scored["text_offset"] == [0, 2, 3, 3, 4] and scored["tokens"][0] == "ab"


def test_echo_of_token_ids_asks_for_their_text(served: Served) -> None:
    assert served.complete(prompt=[1, 2], echo=True).json()["choices"][0]["text"] == "abcHello world"


def test_logprobs_zero_is_a_request(served: Served) -> None:
    scores = served.complete(logprobs=0).json()["choices"][0]["logprobs"]
    assert scores["tokens"] == ["Hello", " wor", "ld"]
    assert scores["top_logprobs"] == [{"Hello": -0.5}, {" wor": -0.5}, {"ld": -0.5}]
    assert served.complete().json()["choices"][0]["logprobs"] is None


def test_best_of_answers_the_most_likely(served: Served) -> None:
    body = served.complete(best_of=4, n=2, logprobs=0).json()
    assert served.ring.requests[0].n == 4
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["completion_tokens"] == 12


def test_ids_as_tokens_and_returned_ids(served: Served) -> None:
    choice = served.complete(logprobs=0, return_tokens_as_token_ids=True, return_token_ids=True, prompt=[8, 9]).json()[
        "choices"
    ][0]
    assert choice["logprobs"]["tokens"] == ["token_id:100", "token_id:101", "token_id:102"]
    assert choice["token_ids"] == [100, 101, 102] and choice["prompt_token_ids"] == [8, 9]


def test_a_batch_may_be_larger_than_the_queue_of_a_recovery(serve: Any) -> None:
    served: Served = serve(max_queued_requests=1)
    assert served.complete(prompt=["a", "b"]).status_code == 200
    served.ring.down.add(("scheduler", 0))
    assert served.complete(prompt=["a", "b"]).json()["error"]["code"] == "queue_full"


def test_stop_strings_wait_for_min_tokens(served: Served) -> None:
    served.complete(min_tokens=3, stop="x")
    served.post("/generate", {"text": "a", "sampling_params": {"min_new_tokens": 3, "stop": "x"}})
    assert [request.detokenize.min_tokens for request in served.ring.requests] == [3, 3]


def test_a_thinking_budget_takes_the_markers_along(serve: Any) -> None:
    served: Served = serve(reasoning_parser="qwen3")
    served.complete(thinking_token_budget=5)
    served.complete(thinking_token_budget=-1)
    served.post("/generate", {"text": "a", "max_thinking_tokens": 5})
    first, without, native = served.ring.requests
    assert first.reasoning is not None and first.reasoning.close == "</think>" and native.reasoning == first.reasoning
    assert without.reasoning is None
    unmarked: Served = serve(reasoning_parser="muse")
    for response in (unmarked.complete(thinking_token_budget=5), unmarked.chat(thinking_token_budget=5)):
        assert response.status_code == 400 and response.json()["error"]["param"] == "thinking_token_budget"


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [5, 2**31]}, "prompt[1]"),
    ({"prompt": [[40], [5, -7]]}, "prompt[1][1]"),
    ({"prompt": ["x"] * 1025}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -2}, "logprobs"),
    ({"logprobs": -1, "stream": True}, "logprobs"),
    ({"logprobs": -1, "max_tokens": 2000}, "logprobs"),
    ({"logprobs": -1, "echo": True}, "logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"best_of": 3, "stream": True}, "best_of"),
    ({"suffix": "x"}, "suffix"),
    ({"echo": True, "truncate_prompt_tokens": 3}, "echo"),
    ({"stop_regex": "("}, "stop_regex"),
    ({"stop_regex": "(?a)(?u)x"}, "stop_regex"),
    ({"stop_regex": "a{1000000000}"}, "stop_regex"),
    ({"stop_regex": ["a", "(b{ 40 }c){30}"]}, "stop_regex[1]"),
    ({"stop_regex": "(?ix)a{1000 0000}"}, "stop_regex"),
    ({"prompt_logprobs": 10**6}, "prompt_logprobs"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_FIELDS, ids=lambda value: str(value)[:60])
def test_bad_fields_are_named(served: Served, fields: dict[str, Any], param: str) -> None:
    response = served.complete(**fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)
    assert not served.ring.sent
