"""The contract of /generate, proved against the running server in the same way."""

import itertools
import json
from typing import Any

import pytest

from tests.integration.servers import Server

GREEDY = {"temperature": 0, "max_new_tokens": 6}


def ask(server: Server, **fields: Any) -> dict[str, Any]:
    body = {"text": "The quick brown fox", "sampling_params": GREEDY} | fields
    if "input_ids" in fields:
        del body["text"]
    response = server.post("/generate", body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def frames(server: Server, **fields: Any) -> list[Any]:
    body = {"text": "The quick brown fox", "sampling_params": GREEDY, "stream": True} | fields
    lines = server.post("/generate", body).text.split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_prompts(server: Server) -> None:
    assert ask(server, text="One, two, three,")["text"] != ask(server, text="Monday, Tuesday,")["text"]
    for ids in ([1, 2, 3], [5, 6]):
        answer = ask(server, input_ids=ids, return_prompt_token_ids=True)
        assert answer["prompt_token_ids"] == ids and answer["meta_info"]["prompt_tokens"] == len(ids)
    assert "prompt_token_ids" not in ask(server)


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [
        ({"regex": "a{3}b"}, {"regex": "c{3}d"}, ("aaab", "cccd")),
        ({"ebnf": 'root ::= "a"'}, {"ebnf": 'root ::= "b"'}, ("a", "b")),
        ({"json_schema": '{"const": 1}'}, {"json_schema": '{"const": 2}'}, ("1", "2")),
    ],
)
def test_sampling_parameters_under_their_own_names(
    server: Server, one: dict[str, Any], other: dict[str, Any], texts: tuple[str, str]
) -> None:
    assert tuple(ask(server, sampling_params=GREEDY | given)["text"] for given in (one, other)) == texts


def test_lengths_and_seeds(server: Server) -> None:
    for count in (2, 5):
        meta = ask(server, sampling_params={"max_new_tokens": count, "temperature": 0})["meta_info"]
        assert meta["completion_tokens"] == count and meta["finish_reason"] == {"type": "length", "length": count}
    stop = ask(server)["output_ids"][1]
    early = {"stop_token_ids": [stop]} | GREEDY
    assert ask(server, sampling_params=early)["meta_info"]["completion_tokens"] == 2
    assert ask(server, sampling_params=early | {"min_new_tokens": 4})["meta_info"]["completion_tokens"] >= 4
    wild = {"temperature": 1.9, "max_new_tokens": 12}
    first, again, other = (ask(server, sampling_params=wild | {"sampling_seed": seed}) for seed in (1, 1, 2))
    assert first["output_ids"] == again["output_ids"] != other["output_ids"]


def test_logprobs(server: Server) -> None:
    assert "output_token_logprobs" not in ask(server)["meta_info"]
    meta = ask(server, return_logprob=True, top_logprobs_num=2, logprob_start_len=0)["meta_info"]
    assert len(meta["output_token_logprobs"]) == 6 and {len(tops) for tops in meta["output_top_logprobs"]} == {2}
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
    assert all(entry[2] is None for entry in meta["output_token_logprobs"])
    named = ask(server, return_logprob=True, token_ids_logprob=[40, 41], return_text_in_logprobs=True)["meta_info"]
    assert [[entry[1] for entry in entries] for entries in named["output_token_ids_logprobs"]] == [[40, 41]] * 6
    assert named["output_top_logprobs"] == [None] * 6 and "input_token_logprobs" not in named
    assert all(isinstance(entry[2], str) for entry in named["output_token_logprobs"])
    refused = server.post("/generate", {"text": "x", "token_ids_logprob": [1]})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "token_ids_logprob"


def test_streams_add_up_or_are_pieces(server: Server) -> None:
    whole = ask(server)["text"]
    growing = [frame["text"] for frame in frames(server)]
    assert growing[-1] == whole and all(longer.startswith(text) for text, longer in itertools.pairwise(growing))
    pieces = [frame["text"] for frame in frames(server, incremental_streaming_output=True)]
    assert len(pieces) > 1 and "".join(pieces) == whole


def test_ids_models_and_adjustments(server: Server) -> None:
    for rid in ("one", "two"):
        assert ask(server, rid=rid)["meta_info"]["id"] == rid
    assert server.post("/generate", {"text": "x", "model": "other"}).status_code == 404
    assert (
        ask(server, model="smollm2", temprature=1, return_adjustments=True)["adjustments"][0]["field"] == "temprature"
    )
    assert "adjustments" not in ask(server, temprature=1)
