"""Whatever the OpenAPI description allows, and much that it does not, is answered without a fault of ours."""

import logging
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from hypothesis import strategies as st

from http_frontend.contract.endpoints import TABLES
from tests.http_frontend.fakes import Served

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
QUICK = hypothesis.settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


def post(served: Served, path: str, body: Any) -> Any:
    response = served.post(path, body)
    assert response.status_code < 500, (path, body, response.text)
    if response.status_code >= 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    return response


@pytest.mark.parametrize("path", sorted(TABLES))
def test_bodies_out_of_the_description(served: Served, path: str) -> None:
    schema = schemathesis.openapi.from_dict(served.app.openapi())
    strategy = schema[path]["POST"].as_strategy()

    @QUICK
    @hypothesis.given(case=strategy)
    def check(case: Any) -> None:
        post(served, path, case.body if isinstance(case.body, (dict, list)) else {})

    check()


@pytest.mark.parametrize("path", sorted(TABLES))
def test_fields_with_any_value(served: Served, path: str) -> None:
    base: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    if path == "/generate":
        base = {"text": "x"}

    @QUICK
    @hypothesis.given(name=st.sampled_from(sorted(TABLES[path].by_name)), value=JSON_VALUES)
    def check(name: str, value: Any) -> None:
        post(served, path, base | {name: value})

    check()


def test_nothing_was_logged_as_a_fault(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert (
            served.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 10_000}]}).status_code
            == 200
        )
    assert not caplog.records
