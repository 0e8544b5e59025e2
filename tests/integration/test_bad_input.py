"""Whatever a client sends, it gets a 4xx in OpenAI's form, nothing reaches the scheduler, and the next request works."""

import http.client
import json
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis.core.result import Ok

from tests.integration.servers import PATIENCE_S, Server

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "x"}]
JSON_TYPE = {"content-type": "application/json"}


def good(server: Server) -> None:
    response = server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1})
    assert response.status_code == 200, response.text


def started(server: Server) -> int:
    """Steps so far: a refused request costs none."""
    (scheduler,) = server.state()["internal_states"]
    steps: int = scheduler["steps"]
    return steps


def refused(response: httpx.Response, param: str | None = None) -> None:
    assert 400 <= response.status_code < 500, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and "Traceback" not in error["message"]
    if param is not None:
        assert error["param"] == param, error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b'"text"',
        b"\xff\xfe{}",
        b'{"prompt": "x", "max_tokens": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "seed": 1' + b"0" * 5000 + b"}",
        b'{"prompt": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"prompt": "x", "metadata": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001,
        b'{"prompt": "' + b"x" * (10 << 20) + b'"}',
    ],
    ids=lambda body: f"{body[:24]!r}.. {len(body)}",
)
def test_bodies_that_are_not_a_request(crowd: Server, body: bytes) -> None:
    before = started(crowd)
    refused(crowd.http.post(COMPLETIONS, content=body, headers=JSON_TYPE))
    assert started(crowd) == before
    good(crowd)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {}, "messages"),
        (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user"}]}, None),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, None),
        (CHAT, {"messages": ["x"]}, "messages[0]"),
        (CHAT, {"messages": MESSAGES, "max_tokens": "many"}, "max_tokens"),
        (CHAT, {"messages": MESSAGES, "temperature": -1}, "temperature"),
        (CHAT, {"messages": MESSAGES, "temperature": 99}, "temperature"),
        (CHAT, {"messages": MESSAGES, "top_p": 0}, "top_p"),
        (CHAT, {"messages": MESSAGES, "top_p": 1.01}, "top_p"),
        (CHAT, {"messages": MESSAGES, "n": 0}, "n"),
        (CHAT, {"messages": MESSAGES, "n": 10**9}, "n"),
        (CHAT, {"messages": MESSAGES, "logit_bias": {"5": 1000}}, None),
        (CHAT, {"messages": MESSAGES, "logit_bias": {"x": 1}}, None),
        (CHAT, {"messages": MESSAGES, "logit_bias": {"100000": 1}}, "logit_bias"),
        (CHAT, {"messages": MESSAGES, "top_logprobs": 3}, None),
        (CHAT, {"messages": MESSAGES, "stop": ["a"] * 10_000}, "stop"),
        (CHAT, {"messages": MESSAGES, "stop_regex": "("}, None),
        (CHAT, {"messages": MESSAGES, "response_format": {"type": "poem"}}, None),
        (CHAT, {"messages": MESSAGES, "tools": [{"type": "function"}]}, None),
        (CHAT, {"messages": MESSAGES, "model": "gpt-0"}, "model"),
        (CHAT, {"messages": [{"role": "user", "content": "word " * 20_000}]}, None),
        (CHAT, {"messages": MESSAGES, "max_tokens": 50_000}, "max_tokens"),
        (COMPLETIONS, {"prompt": [1, 2, 10**6]}, "prompt"),
        (CHAT, {"messages": MESSAGES, "input_ids": [10**6]}, "input_ids"),
        ("/generate", {"input_ids": [10**6]}, "input_ids"),
        (COMPLETIONS, {"prompt": [-1]}, None),
        (COMPLETIONS, {"prompt": []}, None),
        (COMPLETIONS, {"prompt": {"a": 1}}, None),
        (COMPLETIONS, {"prompt": "x", "allowed_token_ids": [2], "min_tokens": 3, "max_tokens": 5}, "allowed_token_ids"),
        ("/generate", {}, None),
        ("/generate", {"text": "x", "input_ids": [1]}, None),
        ("/generate", {"text": "x", "sampling_params": {"temperature": "hot"}}, None),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/detokenize", {"tokens": [10**6]}, None),
    ],
    ids=lambda value: str(value)[:80],
)
def test_fields_that_can_t_be_meant(crowd: Server, path: str, fields: dict[str, Any], param: str | None) -> None:
    before = started(crowd)
    refused(crowd.post(path, fields), param)
    refused(crowd.post(path, fields | {"stream": True}) if path != "/tokenize" else crowd.post(path, fields))
    assert started(crowd) == before
    good(crowd)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": ["a", [1, 10**6]]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": ["a", ""]}, "prompt[1]"),
        ("/generate", {"text": ["x", ""]}, "text[1]"),
    ],
)
def test_the_one_of_a_batch_that_is_wanting_is_named(
    crowd: Server, path: str, fields: dict[str, Any], param: str
) -> None:
    refused(crowd.post(path, fields), param)
    good(crowd)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_other_content_types(crowd: Server, kind: str) -> None:
    body = json.dumps({"prompt": "x"}).encode()
    refused(crowd.http.post(COMPLETIONS, content=body, headers={"content-type": kind}))
    good(crowd)


@pytest.mark.parametrize(("method", "path"), [("GET", COMPLETIONS), ("POST", "/v1/models"), ("GET", "/no/such/path")])
def test_other_methods_and_paths(crowd: Server, method: str, path: str) -> None:
    refused(crowd.http.request(method, path))


def test_a_body_that_never_ends_costs_nothing_but_its_connection(crowd: Server) -> None:
    connection = http.client.HTTPConnection(crowd.url.removeprefix("http://"), timeout=PATIENCE_S)
    connection.putrequest("POST", COMPLETIONS)
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", "1000000")
    connection.endheaders()
    connection.send(b'{"prompt": "')
    good(crowd)
    connection.close()
    good(crowd)


def test_a_stop_regex_that_explodes_ends_its_own_request(crowd: Server) -> None:
    """`(x+x+)+y` over text without a y: exponential for a backtracking matcher."""
    body = {"prompt": "x", "stop_regex": "(.+.+)+\\x00", "max_tokens": 60, "ignore_eos": True}
    response = crowd.post(COMPLETIONS, body)
    assert response.status_code in (200, 400, 422), response.text
    good(crowd)


def hold_short(case: Any) -> None:
    """Answers of a few tokens: what is looked for here are faults of the front end."""
    if case.operation.path in (CHAT, COMPLETIONS) and isinstance(case.body, dict):
        case.body.pop("max_completion_tokens", None)
        case.body["max_tokens"] = 2
    elif case.operation.path == "/generate" and isinstance(case.body, dict):
        sampling = case.body.get("sampling_params")
        if isinstance(sampling, dict):
            sampling["max_new_tokens"] = 2


def test_the_description_s_bodies_make_no_fault(crowd: Server) -> None:
    """Out of /openapi.json, over real sockets; what generates is held to a few tokens."""
    schema = schemathesis.openapi.from_url(f"{crowd.url}/openapi.json")
    settings = hypothesis.settings(
        max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
    )
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()

        @settings
        @hypothesis.given(case=operation.as_strategy())
        def check(case: Any) -> None:
            hold_short(case)
            response = case.call(timeout=PATIENCE_S)
            assert response.status_code < 500, (case.operation.label, case.body, response.text)

        check()
    pids = crowd.pids()
    good(crowd)
    assert len(pids) == 8
    assert "Traceback" not in crowd.errors()
