"""Keys, admin routes, preflights."""

from typing import Any

import pytest

from tests.http_frontend.fakes import Served, chat_body

BODY = chat_body()


def status(served: Served, method: str, path: str, key: str | None = None, **options: Any) -> int:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return served.call(method, path, headers=headers, **options).status_code


def test_every_key_opens_and_no_other(serve: Any) -> None:
    served: Served = serve(api_key=("one", "two"))
    assert status(served, "POST", "/v1/chat/completions", "one", json=BODY) == 200
    assert status(served, "POST", "/v1/chat/completions", "two", json=BODY) == 200
    assert {request.fairness_key for request in served.ring.requests} == {"key-0", "key-1"}
    for key in (None, "", "three", "on", "one "):
        response = served.call("GET", "/v1/models", headers={} if key is None else {"authorization": f"Bearer {key}x"})
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    assert served.call("GET", "/v1/models", headers={"x-api-key": "two"}).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ready", "/ping", "/metrics"])
def test_probes_need_no_key(serve: Any, path: str) -> None:
    assert status(serve(api_key=("one",)), "GET", path) == 200


def test_metrics_can_ask_for_the_key(serve: Any) -> None:
    served = serve(api_key=("one",), metrics_need_key=True)
    assert status(served, "GET", "/metrics") == 401
    assert status(served, "GET", "/metrics", "one") == 200


def test_admin_routes_are_closed_unless_a_key_is_set_or_the_host_is_loopback(serve: Any) -> None:
    assert status(serve(), "POST", "/flush_cache") == 200
    assert status(serve(host="0.0.0.0"), "POST", "/flush_cache") == 403
    served = serve(host="0.0.0.0", api_key=("user",), admin_api_key="root")
    assert status(served, "POST", "/flush_cache", "user") == 401
    assert status(served, "POST", "/flush_cache", "root") == 200
    assert status(served, "GET", "/v1/models", "root") == 200


def test_keys_are_not_shown(serve: Any) -> None:
    served = serve(api_key=("secret-a",), admin_api_key="secret-b")
    text = served.call("GET", "/server_info", headers={"authorization": "Bearer secret-a"}).text
    assert "secret" not in text


def test_a_preflight_carries_no_key_and_pages_may_read(serve: Any) -> None:
    served: Served = serve(api_key=("one",), cors_allow_origins=("http://ui.example",))
    preflight = served.call(
        "OPTIONS",
        "/v1/chat/completions",
        headers={
            "origin": "http://ui.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        },
    )
    assert preflight.status_code == 200
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    headers = {"origin": "http://ui.example", "authorization": "Bearer one"}
    answer = served.call("POST", "/v1/chat/completions", json=chat_body(stream=True), headers=headers)
    assert answer.headers["access-control-allow-origin"] == "http://ui.example"
    assert "x-candor-adjustments" in answer.headers["access-control-expose-headers"].lower()


def test_request_ids_are_echoed_or_made(served: Served) -> None:
    echoed = served.call("POST", "/v1/chat/completions", json=BODY, headers={"x-request-id": "trace-7"})
    assert echoed.headers["x-request-id"] == "trace-7"
    made = served.call("GET", "/v1/models", headers={"x-request-id": "no spaces please"})
    assert len(made.headers["x-request-id"]) == 32
