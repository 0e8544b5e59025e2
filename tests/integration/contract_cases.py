"""What each field of the contract does, shown by two values of it: one function a field, against a running server."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PLAIN: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Tell me about foxes."}]},
    COMPLETIONS: {"prompt": "The quick brown fox"},
}


class Answer:
    """The first choice of an answer, in the words that chat and completions share."""

    def __init__(self, response: httpx.Response) -> None:
        assert response.status_code == 200, response.text
        self.body = response.json()
        self.choice = self.body["choices"][0]
        self.text: str = self.choice["message"]["content"] if "message" in self.choice else self.choice["text"]
        self.ids: list[int] = self.choice.get("token_ids") or []
        self.end: str = self.choice["finish_reason"]
        self.usage = self.body["usage"]
        self.told = response.headers.get("x-candor-adjustments", "")


@dataclass(frozen=True)
class Asking:
    """Asks one endpoint; greedy, seeded and short unless said otherwise."""

    http: httpx.Client
    path: str
    defaults: dict[str, Any] = field(
        default_factory=lambda: {"temperature": 0, "seed": 1, "max_tokens": 10, "return_token_ids": True}
    )

    def post(self, **fields: Any) -> httpx.Response:
        body = {k: v for k, v in (PLAIN[self.path] | self.defaults | fields).items() if v is not None}
        return self.http.post(self.path, json=body)

    def __call__(self, **fields: Any) -> Answer:
        return Answer(self.post(**fields))

    def chunks(self, **fields: Any) -> list[Any]:
        lines = self.post(stream=True, **fields).text.split("\n")
        assert lines[-3] == "data: [DONE]"
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    @property
    def is_chat(self) -> bool:
        return self.path == CHAT


Case = Callable[[Asking], None]


def wild(ask: Asking, **fields: Any) -> Answer:
    return ask(**({"temperature": 1.9, "max_tokens": 16} | fields))


def like_greedy(name: str, narrow: Any, wide: Any) -> Case:
    """The narrow value leaves nothing but the most likely token, the wide one leaves the draw free."""

    def check(ask: Asking) -> None:
        greedy = ask(max_tokens=16)
        assert wild(ask, **{name: narrow}).ids == greedy.ids
        assert wild(ask, **{name: wide}).ids != greedy.ids

    return check


def repeats_less(name: str, low: Any, high: Any) -> Case:
    def check(ask: Asking) -> None:
        few, many = (len(set(ask(max_tokens=32, **{name: value}).ids)) for value in (low, high))
        assert few < many

    return check


def bound(one: dict[str, Any], other: dict[str, Any], texts: tuple[str, str]) -> Case:
    """Two constraints, each with one text."""

    def check(ask: Asking) -> None:
        assert (ask(**one).text, ask(**other).text) == texts

    return check


def temperature(ask: Asking) -> None:
    assert ask().ids == ask(seed=2).ids
    assert wild(ask).ids != wild(ask, seed=2).ids


def seed(ask: Asking) -> None:
    first = wild(ask, seed=1)
    assert first.ids == wild(ask, seed=1).ids != wild(ask, seed=2).ids


def max_tokens(ask: Asking) -> None:
    for count in (2, 5):
        answer = ask(max_tokens=count)
        assert (answer.usage["completion_tokens"], answer.end) == (count, "length")


def logit_bias(ask: Asking) -> None:
    first = ask().ids[0]
    assert first not in ask(logit_bias={str(first): -100}).ids
    assert set(ask(logit_bias={"50": 100}).ids) == {50}


def allowed_token_ids(ask: Asking) -> None:
    for token in (40, 41):
        assert set(ask(allowed_token_ids=[token]).ids) == {token}


def bad_words(ask: Asking) -> None:
    """The tokens that spell the word are not drawn in a row; that others may spell it is said in the contract."""
    whole = ask(max_tokens=24)
    word = max(whole.text.split()[1:-1], key=len)
    spelt = ask.http.post("/tokenize", json={"prompt": f" {word}"}).json()["tokens"]

    def holds(ids: list[int]) -> bool:
        return any(ids[at : at + len(spelt)] == spelt for at in range(len(ids)))

    assert holds(whole.ids) and not holds(ask(max_tokens=24, bad_words=[word]).ids)


def min_tokens(ask: Asking) -> None:
    """The second token made an end, of which the first comes too early."""
    stop = ask().ids[1]
    assert ask(stop_token_ids=[stop]).usage["completion_tokens"] == 2
    assert ask(stop_token_ids=[stop], min_tokens=8).usage["completion_tokens"] >= 8


def ignore_eos(ask: Asking) -> None:
    """With nothing but the end of a turn (id 2) allowed, an answer is one token long, or as long as it may be."""
    assert ask(allowed_token_ids=[2]).end == "stop"
    assert ask(allowed_token_ids=[2], ignore_eos=True).usage["completion_tokens"] == 10


def n(ask: Asking) -> None:
    for count in (1, 3):
        body = wild(ask, n=count).body
        assert len({str(choice.get("message", choice.get("text"))) for choice in body["choices"]}) == count
        assert body["usage"]["completion_tokens"] == 16 * count


def stop(ask: Asking) -> None:
    whole = ask().text
    word = whole.split()[2]
    cut = ask(stop=[word])
    assert (cut.text, cut.end) == (whole[: whole.index(word)], "stop")


def stop_token_ids(ask: Asking) -> None:
    whole = ask()
    cut = ask(stop_token_ids=[whole.ids[3]])
    assert cut.end == "stop" and len(cut.ids) < len(whole.ids) and cut.choice["stop_reason"] == whole.ids[3]


def stop_regex(ask: Asking) -> None:
    whole, cut = ask(), ask(stop_regex=["[aeiou]"])
    assert whole.text.startswith(cut.text) and not set(cut.text) & set("aeiou") and cut.end == "stop"


def keeps_stop(name: str) -> Case:
    def check(ask: Asking) -> None:
        word = ask().text.split()[2]
        assert not ask(stop=[word], **{name: False}).text.endswith(word)
        assert ask(stop=[word], **{name: True}).text.endswith(word)

    return check


def skip_special_tokens(ask: Asking) -> None:
    assert ask(allowed_token_ids=[1], max_tokens=2).text == ""
    assert ask(allowed_token_ids=[1], max_tokens=2, skip_special_tokens=False).text == "<|im_start|>" * 2


def stream(ask: Asking) -> None:
    key = "delta" if ask.is_chat else "text"
    pieces = [choice[key] for chunk in ask.chunks() for choice in chunk["choices"]]
    text = "".join(piece.get("content") or "" for piece in pieces) if ask.is_chat else "".join(pieces)
    assert text == ask().text and len(pieces) > 3


def stream_interval(ask: Asking) -> None:
    """With these, no special tokens stand beside each other; what counts is how many pieces there are."""
    assert len(ask.chunks(stream_interval=1)) > len(ask.chunks(stream_interval=4))


def stream_options(ask: Asking) -> None:
    assert all(not chunk.get("usage") for chunk in ask.chunks())
    assert ask.chunks(stream_options={"include_usage": True})[-1]["usage"]["completion_tokens"] == 10


def logprobs(ask: Asking) -> None:
    assert ask().choice["logprobs"] is None
    with_them = ask(logprobs=True if ask.is_chat else 2).choice["logprobs"]
    entries = with_them["content"] if ask.is_chat else with_them["tokens"]
    assert len(entries) == 10


def response_format(ask: Asking) -> None:
    free = ask(max_tokens=60)
    answer = ask(max_tokens=60, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}})
    assert json.loads(answer.text)["a"] in (1, 2) and free.text != answer.text


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
ONLY_ONE = {"const": 1}
ONLY_TWO = {"const": 2}
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}
OTHER_TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "y"}}


def json_object(**fields: Any) -> Case:
    def check(ask: Asking) -> None:
        answer = ask(max_tokens=80, **fields)
        assert answer.text.startswith("{") and (answer.end == "length" or isinstance(json.loads(answer.text), dict))
        assert not ask(max_tokens=80).text.startswith("{")

    return check


def json_whitespace(ask: Asking) -> None:
    """Pushed to a line break (id 198), an answer has one exactly where it may."""
    wanted: dict[str, Any] = {"json_schema": SCHEMA, "logit_bias": {"198": 100}, "max_tokens": 40}
    assert json.loads(ask(json_whitespace="compact", **wanted).text)["a"] in (1, 2)
    assert "\n" not in ask(json_whitespace="compact", **wanted).text
    assert "\n" in ask(json_whitespace="any", **wanted).text


def return_token_ids(ask: Asking) -> None:
    assert len(ask().ids) == 10 and "token_ids" not in ask(return_token_ids=False).choice


def return_prompt_token_ids(ask: Asking) -> None:
    answer = ask(return_prompt_token_ids=True)
    places = (answer.body.get("prompt_token_ids"), answer.choice.get("prompt_token_ids"))
    assert answer.usage["prompt_tokens"] in [len(ids) for ids in places if ids]
    silent = ask(return_token_ids=False)
    assert "prompt_token_ids" not in silent.body and "prompt_token_ids" not in silent.choice


def return_tokens_as_token_ids(ask: Asking) -> None:
    wanted = {"logprobs": True if ask.is_chat else 1, "return_tokens_as_token_ids": True}
    answer = ask(**wanted)
    found = answer.choice["logprobs"]
    tokens = [entry["token"] for entry in found["content"]] if ask.is_chat else found["tokens"]
    assert tokens == [f"token_id:{id}" for id in answer.ids]


def return_adjustments(ask: Asking) -> None:
    assert "adjustments" not in ask(user="x").body
    assert ask(user="x", return_adjustments=True).body["adjustments"][0]["field"] == "user"


def prompt_logprobs(ask: Asking) -> None:
    answer = ask(prompt_logprobs=1)
    found = answer.body.get("prompt_logprobs") or answer.choice.get("prompt_logprobs")
    assert found[0] is None and len(found) == answer.usage["prompt_tokens"]


def logprob_token_ids(ask: Asking) -> None:
    answer = ask(logprobs=True if ask.is_chat else 1, logprob_token_ids=[40, 41])
    assert "40" in json.dumps(answer.choice["logprobs"]) or len(json.dumps(answer.choice["logprobs"])) > len(
        json.dumps(ask(logprobs=True if ask.is_chat else 1).choice["logprobs"])
    )


def separates_caches(name: str) -> Case:
    """The same prompt is found again under its own name, and not under another."""

    def check(ask: Asking) -> None:
        prompt = "Once upon a time, in a land far away, there lived a fox who was known for its cunning ways. " * 2
        asked: dict[str, Any] = {"prompt": prompt}
        if ask.is_chat:
            asked = {"messages": [{"role": "user", "content": prompt}]}
        unique = f"{name}-{time.monotonic_ns()}"

        def cached(value: str) -> int:
            details = ask(**asked, **{name: value}).usage["prompt_tokens_details"]
            return int(details["cached_tokens"])

        assert cached(unique) == 0 and cached(unique) > 0 and cached(unique + "2") == 0

    return check


def names_the_answer(name: str) -> Case:
    def check(ask: Asking) -> None:
        for value in (f"a-{name}", f"b-{name}"):
            response = ask.post(**{name: value})
            assert value in response.json()["id"] and response.headers["x-request-id"] == value

    return check


def request_timeout_s(ask: Asking) -> None:
    long = {"max_tokens": 4000, "ignore_eos": True, "min_tokens": 4000}
    response = ask.post(**long, request_timeout_s=0.3)
    assert response.status_code == 408 and response.json()["error"]["type"] == "timeout_error"
    assert ask(request_timeout_s=60).end == "length"


def queue_timeout_s(ask: Asking) -> None:
    """Nothing waits here, so that the shortest wait is enough; what happens when it is not is the scheduler's test."""
    assert ask(queue_timeout_s=30).end == "length"
    assert ask.post(queue_timeout_s=-1).status_code == 400


def names_a_replica(name: str) -> Case:
    def check(ask: Asking) -> None:
        assert ask(**{name: 0}).end == "length"
        assert ask.post(**{name: 7}).status_code == 400

    return check


def truncate_prompt_tokens(ask: Asking) -> None:
    whole = ask().usage["prompt_tokens"]
    assert whole > 2 and ask(truncate_prompt_tokens=2).usage["prompt_tokens"] == 2


def truncation_side(ask: Asking) -> None:
    assert ask(truncate_prompt_tokens=2, truncation_side="left").usage["prompt_tokens"] == 2
    assert ask.post(truncate_prompt_tokens=2, truncation_side="up").status_code == 400


def model(ask: Asking) -> None:
    assert ask(model="smollm2").body["model"] == "smollm2"
    assert ask.post(model="other").status_code == 404


COMMON: dict[str, Case] = {
    "model": model,
    "max_tokens": max_tokens,
    "temperature": temperature,
    "top_p": like_greedy("top_p", 0.0001, 1.0),
    "top_k": like_greedy("top_k", 1, 0),
    "min_p": like_greedy("min_p", 1.0, 0.0),
    "frequency_penalty": repeats_less("frequency_penalty", -2, 2),
    "presence_penalty": repeats_less("presence_penalty", -2, 2),
    "repetition_penalty": repeats_less("repetition_penalty", 0.2, 2.0),
    "seed": seed,
    "logit_bias": logit_bias,
    "allowed_token_ids": allowed_token_ids,
    "bad_words": bad_words,
    "min_tokens": min_tokens,
    "ignore_eos": ignore_eos,
    "n": n,
    "stop": stop,
    "stop_token_ids": stop_token_ids,
    "stop_regex": stop_regex,
    "no_stop_trim": keeps_stop("no_stop_trim"),
    "include_stop_str_in_output": keeps_stop("include_stop_str_in_output"),
    "skip_special_tokens": skip_special_tokens,
    "stream_interval": stream_interval,
    "regex": bound({"regex": "a{3}b"}, {"regex": "c{3}d"}, ("aaab", "cccd")),
    "ebnf": bound({"ebnf": 'root ::= "a"'}, {"ebnf": 'root ::= "b"'}, ("a", "b")),
    "structural_tag": bound({"structural_tag": TAG}, {"structural_tag": OTHER_TAG}, ("x", "y")),
    "json_schema": bound({"json_schema": ONLY_ONE}, {"json_schema": ONLY_TWO}, ("1", "2")),
    "guided_json": bound({"guided_json": ONLY_ONE}, {"guided_json": ONLY_TWO}, ("1", "2")),
    "guided_regex": bound({"guided_regex": "a{3}b"}, {"guided_regex": "c{3}d"}, ("aaab", "cccd")),
    "guided_choice": bound({"guided_choice": ["yes"]}, {"guided_choice": ["no"]}, ("yes", "no")),
    "guided_grammar": bound({"guided_grammar": 'root ::= "a"'}, {"guided_grammar": 'root ::= "b"'}, ("a", "b")),
    "guided_json_object": json_object(guided_json_object=True),
    "structured_outputs": bound(
        {"structured_outputs": {"choice": ["yes"]}}, {"structured_outputs": {"regex": "no"}}, ("yes", "no")
    ),
    "response_format": response_format,
    "json_whitespace": json_whitespace,
    "stream": stream,
    "stream_options": stream_options,
    "logprobs": logprobs,
    "return_token_ids": return_token_ids,
    "return_prompt_token_ids": return_prompt_token_ids,
    "return_tokens_as_token_ids": return_tokens_as_token_ids,
    "return_adjustments": return_adjustments,
    "prompt_logprobs": prompt_logprobs,
    "logprob_token_ids": logprob_token_ids,
    "cache_salt": separates_caches("cache_salt"),
    "extra_key": separates_caches("extra_key"),
    "request_id": names_the_answer("request_id"),
    "rid": names_the_answer("rid"),
    "request_timeout_s": request_timeout_s,
    "queue_timeout_s": queue_timeout_s,
    "routed_dp_rank": names_a_replica("routed_dp_rank"),
    "data_parallel_rank": names_a_replica("data_parallel_rank"),
    "truncate_prompt_tokens": truncate_prompt_tokens,
    "truncation_side": truncation_side,
}
