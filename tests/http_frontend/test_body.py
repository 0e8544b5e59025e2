"""Bodies that are no JSON, too large, too deep, of another type: always a 4xx in the standard shape."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_frontend.body import MAX_DEPTH, parse_json
from protocol.errors import RequestError
from tests.http_frontend.fakes import Served, chat_body

JSON = {"content-type": "application/json"}
GOOD = msgspec.json.encode(chat_body()).decode()


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        ("{", JSON, 400, "invalid_json"),
        ("", JSON, 400, "invalid_json"),
        ("[]", JSON, 400, "invalid_type"),
        ('"x"', JSON, 400, "invalid_type"),
        (GOOD.replace("0.7", "NaN"), JSON, 400, "invalid_json"),
        (GOOD.replace("0.7", "-Infinity"), JSON, 400, "invalid_json"),
        (GOOD.replace("0.7", "1e999"), JSON, 400, "invalid_json"),
        (GOOD.replace('"Hi"', '"\\ud800"'), JSON, 400, "invalid_json"),
        (b'{"messages": "\xff"}', JSON, 400, "invalid_json"),
        ("[" * 5000 + "]" * 5000, JSON, 400, "too_deep"),
        ('{"messages": [], "x": ' + '{"a":' * 200 + "1" + "}" * 200 + "}", JSON, 400, "too_deep"),
        (GOOD, {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        (GOOD, JSON | {"content-encoding": "gzip"}, 415, "unsupported_content_encoding"),
        ("x" * 5000, JSON, 413, "body_too_large"),
    ],
)
def test_bodies_that_are_refused(
    serve: object, content: str | bytes, headers: dict[str, str], status: int, code: str
) -> None:
    served: Served = serve(max_body_bytes=4999 if status == 413 else 1 << 20)  # type: ignore[operator]
    response = served.call("POST", "/v1/chat/completions", content=content, headers=headers)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code and error["message"] and set(error) == {"message", "type", "param", "code"}
    assert not served.ring.sent
    assert served.chat().status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "application/json; charset=utf-8"},
        {"content-type": "application/x+json"},
        {"content-encoding": "identity"},
    ],
)
def test_json_by_other_names_is_taken(served: Served, headers: dict[str, str]) -> None:
    assert served.call("POST", "/v1/chat/completions", content=GOOD, headers=headers).status_code == 200


def test_unknown_routes_and_methods_have_the_same_shape(served: Served) -> None:
    missing, wrong = served.call("GET", "/v1/nothing"), served.call("DELETE", "/v1/models")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "x-request-id" in missing.headers


def test_what_can_be_got_has_a_head(served: Served) -> None:
    for path in ("/health", "/ready", "/ping", "/v1/models", "/metrics"):
        assert served.call("HEAD", path).status_code == 200, path
    assert served.call("HEAD", "/flush_cache").status_code == 405


def test_a_redirect_is_counted_like_any_answer(served: Served) -> None:
    moved = served.call("GET", "/version/", follow_redirects=False)
    assert moved.status_code == 307
    assert 'outcome="3xx"} 1.0' in served.call("GET", "/metrics").text


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_refuse(raw: bytes) -> None:
    try:
        parse_json(raw)
    except RequestError as error:
        assert 400 <= error.info.status < 500


@given(st.integers(1, 2 * MAX_DEPTH))
def test_depth_is_counted_exactly(depth: int) -> None:
    raw = b'{"a":[' * (depth // 2) + b"[" * (depth % 2) + b"]" * (depth % 2) + b"]}" * (depth // 2)
    try:
        parse_json(raw)
        assert depth <= MAX_DEPTH
    except RequestError:
        assert depth > MAX_DEPTH
