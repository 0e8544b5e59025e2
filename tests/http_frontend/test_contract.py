"""The table: what it promises is what the front end does, in each deployment."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from http_frontend.contract.document import contract_markdown, contract_rows, documented_config
from http_frontend.contract.endpoints import TABLES
from http_frontend.contract.field import Field, nested_fields
from http_frontend.contract.readings import READINGS, Reading
from http_frontend.contract.review import MAX_GUESSES, MAX_HEADER_BYTES, Review
from protocol.errors import RequestError
from protocol.requests import GenerateRequest
from tests.http_frontend.fakes import Served, chat_body, make_config

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BASE: dict[str, dict[str, Any]] = {
    CHAT: chat_body(),
    COMPLETIONS: {"prompt": "Once", "temperature": 0.7},
    "/generate": {"text": "Once", "sampling_params": {"temperature": 0.7}},
}
# What else a body needs so that a field has a meaning.
COMPANIONS: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "temperature": {"temperature": None},
    "stream_options": {"stream": True},
    "echo": {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
    "logprob_start_len": {"return_logprob": True},
    "top_logprobs_num": {"return_logprob": True},
    "return_text_in_logprobs": {"return_logprob": True},
    "incremental_streaming_output": {"stream": True},
    "return_tokens_as_token_ids": {"logprobs": True},
    "return_adjustments": {"user": "x"},
    "best_of": {"n": 1},
    "json_whitespace": {"json_schema": {"type": "object"}},
}
SCALARS: dict[str, Any] = {
    "boolean": True,
    "integer": 3,
    "number": 0.5,
    "string": "x",
    "list": [],
    "object": {},
    "any": "x",
}


def fields_of(path: str, tier: str) -> list[Field]:
    config = documented_config()
    return [field for field in TABLES[path].fields if field.rule(config).tier == tier]


def cases(*tiers: str, probed: bool = False) -> list[Any]:
    return [
        pytest.param(path, field, id=f"{path}:{field.name}")
        for path in BASE
        for tier in tiers
        for field in fields_of(path, tier)
        if field.probe is not None or not probed
    ]


def body_with(path: str, field: Field, value: Any) -> dict[str, Any]:
    companions = COMPANIONS.get(field.name, {})
    if path == COMPLETIONS and field.name in ("echo", "return_tokens_as_token_ids"):
        companions = {"logprobs": 1}
    return BASE[path] | companions | {field.name: value}


def seen(served: Served, path: str, body: dict[str, Any]) -> Any:
    """Everything observable of a call but what is random anyway: the request behind, and the answer."""
    served.ring.sent.clear()
    response = served.post(path, body)
    assert response.status_code == 200, response.text
    requests = [comparable(message) for message in served.ring.requests]
    answer = response.text if "event-stream" in response.headers["content-type"] else strip(response.json())
    if isinstance(answer, str):
        answer = [strip(msgspec.json.decode(line[6:])) for line in answer.split("\n") if line.startswith("data: {")]
    return requests, answer


def comparable(request: GenerateRequest) -> Any:
    sampling = request.sampling if request.sampling.seed < 1000 else msgspec.structs.replace(request.sampling, seed=0)
    request_id = request.request_id if len(request.request_id) < 10 else ""
    return msgspec.structs.replace(request, arrival_s=0.0, sampling=sampling, request_id=request_id)


def strip(answer: Any) -> Any:
    if isinstance(answer, list):
        return [strip(one) for one in answer]
    volatile = ("id", "created") if len(str(answer.get("id", ""))) > 20 else ("created",)
    kept = {name: value for name, value in answer.items() if name not in volatile}
    if "meta_info" in kept:
        kept["meta_info"] = {
            k: v for k, v in kept["meta_info"].items() if k != "e2e_latency" and (k != "id" or len(v) < 10)
        }
    return kept


@pytest.mark.parametrize(("path", "field"), cases("honoured", "extension", "clamped", probed=True))
def test_an_honoured_field_changes_the_request_or_the_answer(shared: Served, path: str, field: Field) -> None:
    assert field.probe is not None
    first, second = (seen(shared, path, body_with(path, field, value)) for value in field.probe)
    assert first != second


@pytest.mark.parametrize(("path", "field"), cases("ignored"))
def test_an_ignored_field_is_told_and_refused_in_strict_mode(shared: Served, path: str, field: Field) -> None:
    value = a_value(field)
    response = shared.post(path, BASE[path] | {field.name: value})
    assert response.status_code == 200, response.text
    told = msgspec.json.decode(response.headers["x-candor-adjustments"])
    assert {"field": field.name, "action": "ignored", "reason": field.rule(shared.front.config).reason} in told
    strict = shared.post(path, BASE[path] | {field.name: value}, headers={"x-candor-strict": "1"})
    if field.harmless:
        assert strict.status_code == 200
    else:
        assert strict.status_code == 400 and strict.json()["error"]["param"] == field.name
    for neutral in field.neutral:
        assert "x-candor-adjustments" not in shared.post(path, BASE[path] | {field.name: neutral}).headers


@pytest.mark.parametrize(("path", "field"), cases("rejected"))
def test_a_rejected_field_is_a_400_that_names_it(shared: Served, path: str, field: Field) -> None:
    response = shared.post(path, BASE[path] | {field.name: a_value(field)})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field.name and field.rule(shared.front.config).reason in error["message"]
    assert error["code"] == "unsupported_parameter"
    for neutral in (*field.neutral, None):
        assert shared.post(path, BASE[path] | {field.name: neutral}).status_code == 200


def a_value(field: Field) -> Any:
    """A value of the field's type that asks for something."""
    schema = field.kind.schema()
    if "enum" in schema:
        return next(word for word in schema["enum"] if word not in field.neutral)
    kind = field.kind.describe().replace(",", " ").split()[0]
    value = {"list": ["x"], "object": {"x": "y"}}.get(kind, SCALARS.get(kind, "x"))
    return (not value) if value in field.neutral else value


def test_tiers_follow_the_deployment(tmp_path: Path) -> None:
    def tier(field: str, **flags: Any) -> str:
        config = make_config(tmp_path, **flags)
        return str(next(row["tier"] for row in contract_rows(TABLES[CHAT], config) if row["field"] == field))

    assert (tier("priority"), tier("priority", schedule_policy="priority")) == ("ignored", "extension")
    assert (tier("max_tokens"), tier("max_tokens", context_overflow="clamp")) == ("honoured", "clamped")
    assert (tier("chat_template"), tier("chat_template", trust_request_chat_template=True)) == ("rejected", "extension")
    assert (tier("separate_reasoning"), tier("separate_reasoning", reasoning_parser="qwen3")) == (
        "ignored",
        "extension",
    )


def test_the_route_shows_the_same_rows(shared: Served) -> None:
    shown = shared.call("GET", "/v1/contract").json()
    assert shown["endpoints"][CHAT] == msgspec.to_builtins(contract_rows(TABLES[CHAT], shared.front.config))
    nested = [row["field"] for row in shown["endpoints"][CHAT]]
    assert "messages[].content[].text" in nested and "response_format.json_schema.schema" in nested
    assert shown["deployment"]["flags"]["greedy_n"] == "duplicate"
    markdown = shared.call("GET", "/v1/contract?format=markdown")
    assert markdown.text == contract_markdown(shared.front.config)
    assert shared.call("GET", "/v1/contract?format=xml").status_code == 400


def test_every_field_says_where_it_takes_effect_and_why_not() -> None:
    config = documented_config()
    for path, record in TABLES.items():
        for name, field in [(f".{field.name}", field) for field in record.fields] + list(nested_fields(record)):
            ruling = field.rule(config)
            assert field.effect, (path, name)
            assert ruling.reason or ruling.tier in ("honoured", "extension"), (path, name)


def test_the_page_is_current() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "contract.md").read_text(encoding="utf-8")
    assert page == contract_markdown(documented_config()), (
        "run: python -m http_frontend.contract.document docs/contract.md"
    )


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: reading.case)
def test_every_reading_has_its_test(reading: Reading) -> None:
    file, _, name = reading.test.partition("::")
    text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    assert f"def {name}(" in text, f"{reading.case}: no {name} in tests/{file}"


def test_the_header_is_short_ascii_json(tmp_path: Path) -> None:
    review = Review(make_config(tmp_path), strict=False)
    assert review.header() == ""
    for number in range(200):
        review.tell_unknown(f"tempé🎉{number}" * 20, "x", ("temperature",))
    header = review.header()
    assert header.isascii() and len(header) <= MAX_HEADER_BYTES
    *told, more = msgspec.json.decode(header)
    assert told[0]["field"].startswith("tempé🎉0") and more == f"+{200 - len(told)} more"


@pytest.mark.parametrize(
    ("given", "meant"), [("temprature", "temperature"), ("max_token", "max_tokens"), ("xyzzy", None)]
)
def test_unknown_fields_are_told_with_what_was_meant(shared: Served, given: str, meant: str | None) -> None:
    (told,) = msgspec.json.decode(shared.chat(**{given: 1}).headers["x-candor-adjustments"])
    assert told["field"] == given and told["action"] == "ignored"
    assert (f"did you mean {meant}?" in told["reason"]) if meant else ("mean" not in told["reason"])
    nested = shared.chat(messages=[{"role": "user", "content": "x", "contents": 1}])
    assert "messages[0].contents" in nested.headers["x-candor-adjustments"]


def test_many_unknown_fields_are_told_without_guesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guessed: list[str] = []

    def guess(name: str, known: list[str], **more: Any) -> list[str]:
        guessed.append(name)
        return []

    monkeypatch.setattr("difflib.get_close_matches", guess)
    review = Review(make_config(tmp_path), strict=False)
    for count in range(1000):
        review.tell_unknown(f"field{count}", f"field{count}", ("temperature",))
    assert len(review.adjustments) == 1000 and len(guessed) == MAX_GUESSES


def test_a_strict_server_refuses_what_it_would_adjust(serve: Any) -> None:
    served: Served = serve(strict=True)
    response = served.chat(temprature=1)
    assert response.status_code == 400 and response.json()["error"]["param"] == "temprature"
    assert served.chat(n=2, temperature=0, user="me").status_code == 200


def test_adjustments_in_the_body_when_asked(shared: Served) -> None:
    assert shared.chat(user="me", return_adjustments=True).json()["adjustments"][0]["field"] == "user"
    assert "adjustments" not in shared.chat(user="me").json()


def test_a_review_in_strict_mode_raises(tmp_path: Path) -> None:
    with pytest.raises(RequestError):
        Review(make_config(tmp_path), strict=True).tell("x", "clamped", "because")
