"""The contract proved against the running server: for every field that claims to be honoured, two values that do two
different things, and the right ones; for every field that is ignored, the word that says so."""

import json
from pathlib import Path
from typing import Any

import pytest

from http_frontend.contract.endpoints import TABLES
from http_frontend.contract.field import Field
from tests.http_frontend.test_contract import a_value
from tests.integration.contract_cases import CHAT, COMMON, COMPLETIONS, PLAIN, Asking, Case
from tests.integration.servers import Server

ROOT = Path(__file__).parents[2]
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

ELSEWHERE = {
    "spaces_between_special_tokens": "detokenizer/test_decoder.py",
    "parallel_tool_calls": "integration/test_tools.py",
    "tool_choice": "integration/test_tools.py",
    "tools": "integration/test_tools.py",
    "functions": "integration/test_tools.py",
    "function_call": "integration/test_tools.py",
    "chat_template_kwargs": "tokenizer_manager/test_chat_rendering.py",
    "reasoning_effort": "http_frontend/test_readings.py",
    "documents": "tokenizer_manager/test_chat_rendering.py",
    "prediction": "integration/test_sdk.py",
}
"""Fields that are shown by another test, which names them: with a template that reads them, or at greater length."""


def rendered(ask: Asking, **fields: Any) -> str:
    body = PLAIN[ask.path] | {name: value for name, value in fields.items() if value is not None}
    response = ask.http.post(f"{ask.path}/render", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["prompt"])


def messages(ask: Asking) -> None:
    said = ask(messages=[{"role": "user", "content": "Say yes."}]).usage["prompt_tokens"]
    assert (
        said
        != ask(messages=[{"role": "user", "content": "Say yes, and then no, and then yes."}]).usage["prompt_tokens"]
    )


def max_completion_tokens(ask: Asking) -> None:
    for count in (2, 5):
        assert ask(max_completion_tokens=count, max_tokens=None).usage["completion_tokens"] == count


def top_logprobs(ask: Asking) -> None:
    for count in (0, 2):
        entries = ask(logprobs=True, top_logprobs=count).choice["logprobs"]["content"]
        assert {len(entry["top_logprobs"]) for entry in entries} == {count}


def echo_of_a_message(ask: Asking) -> None:
    talk = [*PLAIN[CHAT]["messages"], {"role": "assistant", "content": "Foxes are"}]
    fields = {"messages": talk, "continue_final_message": True, "add_generation_prompt": False}
    assert ask(echo=True, **fields).text == "Foxes are" + ask(echo=False, **fields).text


def continue_final_message(ask: Asking) -> None:
    talk = [*PLAIN[CHAT]["messages"], {"role": "assistant", "content": "Foxes are"}]
    assert rendered(ask, messages=talk, continue_final_message=True, add_generation_prompt=False).endswith("Foxes are")
    assert not rendered(ask, messages=talk, add_generation_prompt=False).endswith("Foxes are")


def add_generation_prompt(ask: Asking) -> None:
    assert rendered(ask, add_generation_prompt=True).endswith("<|im_start|>assistant\n")
    assert not rendered(ask, add_generation_prompt=False).endswith("<|im_start|>assistant\n")


def input_ids(ask: Asking) -> None:
    for ids in ([1, 2, 3], [5, 6]):
        assert ask(input_ids=ids, return_prompt_token_ids=True).usage["prompt_tokens"] == len(ids)


def prompt(ask: Asking) -> None:
    assert ask(prompt="One, two, three,").text != ask(prompt="Monday, Tuesday,").text


def echo_of_a_prompt(ask: Asking) -> None:
    assert ask(echo=True).text == "The quick brown fox" + ask(echo=False).text


def best_of(ask: Asking) -> None:
    """The best of four by mean logprob is at least as likely as the first alone."""
    fields: dict[str, Any] = {"temperature": 1.9, "logprobs": 1}
    first, best = (ask(best_of=count, **fields).choice["logprobs"]["token_logprobs"] for count in (1, 4))
    assert sum(best) / len(best) >= sum(first) / len(first)


def add_special_tokens(ask: Asking) -> None:
    """This tokenizer adds none: both values are taken, and the prompt is its own text."""
    for value in (True, False):
        assert ask(add_special_tokens=value).usage["prompt_tokens"] == ask().usage["prompt_tokens"]


CASES: dict[str, dict[str, Case]] = {
    CHAT: COMMON
    | {
        "messages": messages,
        "max_completion_tokens": max_completion_tokens,
        "top_logprobs": top_logprobs,
        "echo": echo_of_a_message,
        "continue_final_message": continue_final_message,
        "add_generation_prompt": add_generation_prompt,
        "input_ids": input_ids,
        "add_special_tokens": add_special_tokens,
    },
    COMPLETIONS: COMMON
    | {"prompt": prompt, "echo": echo_of_a_prompt, "best_of": best_of, "add_special_tokens": add_special_tokens},
}


def rows(server: Server, path: str, *tiers: str) -> list[dict[str, Any]]:
    table = server.http.get("/v1/contract").json()["endpoints"][path]
    return [row for row in table if row["tier"] in tiers and row["field"] in TABLES[path].by_name]


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, cases in CASES.items() for name in cases])
def test_two_values_do_two_things(server: Server, path: str, name: str) -> None:
    assert name in [row["field"] for row in rows(server, path, "honoured", "extension", "clamped")]
    CASES[path][name](Asking(server.http, path))


@pytest.mark.parametrize("path", list(CASES))
def test_every_field_that_claims_to_be_honoured_is_shown(server: Server, path: str) -> None:
    claimed = {row["field"] for row in rows(server, path, "honoured", "extension", "clamped")}
    assert claimed - CASES[path].keys() <= ELSEWHERE.keys()
    for name in claimed & ELSEWHERE.keys():
        assert name in (ROOT / "tests" / ELSEWHERE[name]).read_text(), name


@pytest.mark.parametrize("path", list(CASES))
def test_every_ignored_field_is_told_and_every_rejected_one_refused(server: Server, path: str) -> None:
    fields: dict[str, Field] = dict(TABLES[path].by_name)
    for row in rows(server, path, "ignored", "rejected"):
        name = row["field"]
        body = PLAIN[path] | {"max_tokens": 1, name: a_value(fields[name])}
        response = server.post(path, body)
        if row["tier"] == "rejected":
            assert response.status_code == 400 and response.json()["error"]["param"] == name, name
            continue
        assert response.status_code == 200, response.text
        told = json.loads(response.headers["x-candor-adjustments"])
        assert any(one["field"] == name and one["action"] == "ignored" for one in told), name
        strict = server.http.post(path, json=body, headers={"x-candor-strict": "1"})
        assert strict.status_code == (200 if row.get("harmless") else 400), name
