"""The contract of /generate, proved against the running server in the same way."""

import inspect
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_frontend.contract.native import SAMPLING
from tests.integration.contract_cases import COMMON, Answer, Asking, Case
from tests.integration.servers import Server

ROOT = Path(__file__).parents[2]
GREEDY = {"temperature": 0, "max_new_tokens": 6}
OWN_NAMES = {
    "prompt": "text",
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
}
"""What the cases of the other endpoints call a field that has a name of its own here."""


class NativeAnswer(Answer):
    """SGLang's answer in the words of the others."""

    def __init__(self, response: httpx.Response) -> None:
        assert response.status_code == 200, response.text
        given = response.json()
        answers = given if isinstance(given, list) else [given]
        meta = answers[0]["meta_info"]
        self.text, self.ids, self.end = answers[0]["text"], answers[0]["output_ids"], meta["finish_reason"]["type"]
        self.choice = {"text": self.text, "stop_reason": meta["finish_reason"].get("matched")}
        self.usage = {
            "prompt_tokens": meta["prompt_tokens"],
            "completion_tokens": sum(one["meta_info"]["completion_tokens"] for one in answers),
            "prompt_tokens_details": {"cached_tokens": meta["cached_tokens"]},
        }
        self.body = {"choices": [{"text": one["text"]} for one in answers], "usage": self.usage}


@dataclass(frozen=True)
class AskingNatively(Asking):
    path: str = "/generate"

    def post(self, **fields: Any) -> httpx.Response:
        body: dict[str, Any] = {"text": "The quick brown fox"}
        sampling: dict[str, Any] = {}
        for name, value in ({"temperature": 0, "seed": 1, "max_tokens": 10} | fields).items():
            own = str(OWN_NAMES.get(name, name))
            (sampling if own in SAMPLING.by_name else body)[own] = value
        return self.http.post(self.path, json=body | {"sampling_params": sampling})

    def __call__(self, **fields: Any) -> NativeAnswer:
        return NativeAnswer(self.post(**fields))

    def chunks(self, **fields: Any) -> list[Any]:
        lines = self.post(stream=True, **fields).text.split("\n")
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


OTHER_NAMES = {own: other for other, own in OWN_NAMES.items()}
CASES: dict[str, Case] = {
    f"sampling_params.{name}": COMMON[OTHER_NAMES.get(name, name)]
    for name in SAMPLING.by_name
    if OTHER_NAMES.get(name, name) in COMMON
} | {
    name: COMMON[name]
    for name in (
        "cache_salt", "extra_key", "request_timeout_s", "queue_timeout_s", "routed_dp_rank", "data_parallel_rank",
    )
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_two_values_do_two_things(server: Server, name: str) -> None:
    CASES[name](AskingNatively(server.http))


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


def test_parameters_of_each_prompt(server: Server) -> None:
    limits = [2, 5]
    body = {"text": ["a", "b"], "sampling_params": [{"max_new_tokens": count, "ignore_eos": True} for count in limits]}
    answers = server.post("/generate", body).json()
    assert [one["meta_info"]["completion_tokens"] for one in answers] == limits


SHOWN: dict[str, Callable[..., None]] = {
    "text": test_prompts,
    "input_ids": test_prompts,
    "return_prompt_token_ids": test_prompts,
    "sampling_params": test_parameters_of_each_prompt,
    "return_logprob": test_logprobs,
    "logprob_start_len": test_logprobs,
    "top_logprobs_num": test_logprobs,
    "token_ids_logprob": test_logprobs,
    "return_text_in_logprobs": test_logprobs,
    "stream": test_streams_add_up_or_are_pieces,
    "incremental_streaming_output": test_streams_add_up_or_are_pieces,
    "model": test_ids_models_and_adjustments,
    "rid": test_ids_models_and_adjustments,
    "return_adjustments": test_ids_models_and_adjustments,
}
ELSEWHERE = {"sampling_params.spaces_between_special_tokens": "detokenizer/test_decoder.py"}


def test_every_field_that_claims_to_be_honoured_is_shown(server: Server) -> None:
    table = server.http.get("/v1/contract").json()["endpoints"]["/generate"]
    # Parameters in a list are the same fields, which the test above shows to reach their prompts.
    claimed = {
        row["field"]
        for row in table
        if row["tier"] in ("honoured", "extension", "clamped") and not row["field"].startswith("sampling_params[]")
    }
    assert claimed == CASES.keys() | SHOWN.keys() | ELSEWHERE.keys()
    for name, test in SHOWN.items():
        assert name in inspect.getsource(test) or name in inspect.getsource(frames), name
    for name, file in ELSEWHERE.items():
        assert name.rpartition(".")[2] in (ROOT / "tests" / file).read_text(), name
