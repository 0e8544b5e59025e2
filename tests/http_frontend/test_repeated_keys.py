"""A key that stands twice is told: whatever strings the text holds, and only then."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_frontend.repeated_keys import repeated_keys
from tests.http_frontend.fakes import Served, chat_body

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\:,{[é\n', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('ab"\\', max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(value=VALUES, ascii_only=st.booleans())
def test_a_text_without_repeated_keys_is_never_looked_at_twice(value: Any, ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json, "loads", None)
        assert repeated_keys(raw, msgspec.json.decode(raw)) == []


@given(value=VALUES, first=VALUES, name=st.text('ab"\\', max_size=3))
def test_one_that_has_one_is(value: Any, first: Any, name: str) -> None:
    key = json.dumps(name)
    raw = f"[1, {{{key}: {json.dumps(first)}, {key}: {json.dumps(value)}}}]".encode()
    assert repeated_keys(raw, msgspec.json.decode(raw)) == [f"[1].{name}"]


def test_paths_lead_to_every_repeated_key_that_counts() -> None:
    raw = b'{"a": {"x": 1, "x": 2}, "a": {"b": [{"c": 1, "c": 12345678901234567890123, "c": 3}]}, "d": 1e5}'
    assert repeated_keys(raw, msgspec.json.decode(raw)) == ["a", "a.b[0].c"]


def test_a_repeated_field_is_told_and_refused_in_strict_mode(served: Served) -> None:
    raw = msgspec.json.encode(chat_body(temperature=0.0))[:-1] + b',"temperature":0.5}'
    headers = {"content-type": "application/json"}
    answer = served.call("POST", "/v1/chat/completions", content=raw, headers=headers)
    assert answer.status_code == 200
    (told,) = json.loads(answer.headers["x-candor-adjustments"])
    assert (told["field"], told["action"]) == ("temperature", "ignored")
    assert served.ring.requests[0].sampling.temperature == 0.5
    refused = served.call("POST", "/v1/chat/completions", content=raw, headers=headers | {"x-candor-strict": "1"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "temperature"
