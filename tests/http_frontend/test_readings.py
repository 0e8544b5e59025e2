"""The cases that vLLM and SGLang read differently, as Candor reads them, flag by flag."""

from typing import Any

import msgspec
import pytest

from protocol.requests import TextPrompt
from protocol.sampling import GrammarSpec
from runtime.engine_config import InfillFormat
from tests.http_frontend.fakes import Served, events


@pytest.mark.parametrize("temperature", [0, 1e-30, 0.005])
def test_temperature_is_left_as_it_is(served: Served, temperature: float) -> None:
    served.chat(temperature=temperature, top_p=0.5, top_k=3)
    sampling = served.ring.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (temperature, 0.5, 3)


def test_greedy_n_can_be_rejected(serve: Any) -> None:
    response = serve(greedy_n="reject").chat(n=2, temperature=0)
    assert response.status_code == 400 and response.json()["error"]["param"] == "n"


def test_max_completion_tokens_wins_and_is_told(served: Served) -> None:
    response = served.chat(max_tokens=9, max_completion_tokens=3)
    request = served.ring.requests[0]
    assert request.sampling.max_tokens == 3 and request.max_tokens_field == "max_completion_tokens"
    assert "max_completion_tokens wins" in response.headers["x-candor-adjustments"]


def test_unknown_models(serve: Any) -> None:
    served: Served = serve()
    response = served.chat(model="gpt-9")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found" and "tiny" in response.json()["error"]["message"]
    accepting: Served = serve(unknown_model="accept")
    response = accepting.chat(model="gpt-9")
    assert response.json()["model"] == "gpt-9" and accepting.ring.requests[0].model == "tiny"
    assert '"field":"model"' in response.headers["x-candor-adjustments"]


def test_a_served_name_with_a_colon(served: Served) -> None:
    assert served.chat(model="org/tiny:v2").json()["model"] == "org/tiny:v2"


def test_user_is_told(served: Served) -> None:
    assert '"field":"user"' in served.chat(user="me").headers["x-candor-adjustments"]


INFILL = InfillFormat(5, 6, 7, False, (5, 6, 7), ("<pre>", "<suf>", "<mid>"))


def test_a_suffix_is_honoured_or_refused_by_the_vocabulary(served: Served) -> None:
    def tier() -> Any:
        rows = served.call("GET", "/v1/contract").json()["endpoints"]["/v1/completions"]
        return next((row["tier"], row["reason"]) for row in rows if row["field"] == "suffix")

    without = "the model's vocabulary has no fill-in-the-middle tokens"
    assert tier() == ("rejected", without)
    assert without in served.complete(suffix="x").json()["error"]["message"]
    assert served.complete(suffix="").status_code == 200
    assert served.ring.requests[-1].prompt == TextPrompt("Once")
    config = served.front.config
    served.front.config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, infill=INFILL))
    assert tier() == ("honoured", "the prompt is written with <pre> <suf> <mid>")
    served.ring.sent.clear()
    for suffix in ("x", ""):
        assert served.complete(prompt=["a", "b"], suffix=suffix).status_code == 200
    assert [request.prompt for request in served.ring.requests] == [
        TextPrompt(text, suffix=suffix, field=f"prompt[{place}]")
        for suffix in ("x", "")
        for place, text in enumerate(("a", "b"))
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"echo": True}, "echo"), ({"truncate_prompt_tokens": 4}, "truncate_prompt_tokens"), ({"prompt": [1, 2]}, "suffix"),
     ({"prompt": ["a", [1]]}, "suffix")],
)  # fmt: skip
def test_what_a_suffix_does_not_go_with(served: Served, fields: dict[str, Any], param: str) -> None:
    config = served.front.config
    served.front.config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, infill=INFILL))
    refused = served.complete(suffix="x", **fields)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param
    assert served.complete(suffix="", **fields).status_code == 200


def test_stray_stream_options(serve: Any) -> None:
    assert serve().chat(stream_options={"include_usage": True}).status_code == 400
    response = serve(stray_stream_options="ignore").chat(stream_options={"include_usage": True})
    assert response.status_code == 200 and "stream_options" in response.headers["x-candor-adjustments"]


def test_continuous_usage_without_include_usage(served: Served) -> None:
    *chunks, _ = events(served.chat(stream=True, stream_options={"continuous_usage_stats": True}))
    assert all("usage" in chunk for chunk in chunks)


def test_usage_by_default(serve: Any) -> None:
    served: Served = serve(stream_response_default_include_usage=True)
    assert events(served.chat(stream=True))[-2]["usage"]["total_tokens"]
    assert "usage" not in events(served.chat(stream=True, stream_options={"include_usage": False}))[-2]


def test_no_usage_chunk_unless_asked(served: Served) -> None:
    for options in ({}, {"include_usage": False}, None):
        *chunks, _ = events(served.chat(stream=True, stream_options=options))
        assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


def test_embeddings_are_not_there(served: Served) -> None:
    assert served.post("/v1/embeddings", {"input": "x"}).status_code == 404


def test_null_means_not_given(served: Served) -> None:
    nulls = dict.fromkeys(
        ("max_tokens", "stop", "seed", "logit_bias", "top_p", "tools", "tool_choice", "n", "stream", "logprobs")
    )
    response = served.chat(**nulls)
    assert response.status_code == 200 and "x-candor-adjustments" not in response.headers


def test_seeds_are_given_or_made(served: Served) -> None:
    for seed in (5, -1, 2**40, None, None):
        served.chat(seed=seed)
    seeds = [request.sampling.seed for request in served.ring.requests]
    assert seeds[0] == 5 and all(0 <= seed < 2**62 for seed in seeds) and len(set(seeds)) == 5


def test_defaults_come_from_the_model_unless_told_otherwise(serve: Any) -> None:
    for flag, expected in (("model", 0.3), ("openai", 1.0)):
        served: Served = serve(sampling_defaults=flag)
        model = msgspec.structs.replace(served.front.config.model, generation_defaults={"temperature": 0.3})
        served.front.config = msgspec.structs.replace(served.front.config, model=model)
        served.post("/v1/completions", {"prompt": "x"})
        assert served.ring.requests[0].sampling.temperature == expected


SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
SCHEMA_TEXT = '{"type":"object","properties":{"b":{},"a":{}}}'

GRAMMARS: list[tuple[dict[str, Any], GrammarSpec]] = [
    ({"response_format": {"type": "json_object"}}, GrammarSpec("json_object", "", "response_format")),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        GrammarSpec("json_schema", SCHEMA_TEXT, "response_format.json_schema.schema"),
    ),
    ({"guided_json": SCHEMA}, GrammarSpec("json_schema", SCHEMA_TEXT, "guided_json")),
    ({"guided_json": SCHEMA_TEXT}, GrammarSpec("json_schema", SCHEMA_TEXT, "guided_json")),
    ({"guided_regex": "a+"}, GrammarSpec("regex", "a+", "guided_regex")),
    ({"guided_choice": ["a", "b"]}, GrammarSpec("choice", '["a","b"]', "guided_choice")),
    ({"guided_grammar": 'root ::= "a"'}, GrammarSpec("ebnf", 'root ::= "a"', "guided_grammar")),
    ({"regex": "a"}, GrammarSpec("regex", "a", "regex")),
    ({"ebnf": 'root ::= "a"'}, GrammarSpec("ebnf", 'root ::= "a"', "ebnf")),
    ({"structured_outputs": {"json": SCHEMA}}, GrammarSpec("json_schema", SCHEMA_TEXT, "structured_outputs.json")),
    ({"structured_outputs": {"choice": ["x"]}}, GrammarSpec("choice", '["x"]', "structured_outputs.choice")),
    ({"structured_outputs": {"json_object": True}}, GrammarSpec("json_object", "", "structured_outputs.json_object")),
    (
        {"structured_outputs": {"json_object": False, "regex": "a"}},
        GrammarSpec("regex", "a", "structured_outputs.regex"),
    ),
    ({"response_format": {"type": "regex", "pattern": "a"}}, GrammarSpec("regex", "a", "response_format.pattern")),
]


@pytest.mark.parametrize(("fields", "expected"), GRAMMARS, ids=lambda value: str(value)[:50])
def test_every_spelling_of_a_constraint(served: Served, fields: dict[str, Any], expected: GrammarSpec) -> None:
    assert served.chat(**fields).status_code == 200
    assert served.ring.requests[0].sampling.grammar == expected


def test_text_is_no_constraint(served: Served) -> None:
    served.chat(response_format={"type": "text"})
    assert served.ring.requests[0].sampling.grammar is None


def test_an_effort_becomes_the_switch_that_the_template_reads(served: Served) -> None:
    for reads, expected in (
        (None, {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
        (frozenset({"enable_thinking"}), {"enable_thinking": False}),
        (frozenset({"messages"}), {}),
    ):
        served.front.template_reads = reads
        served.ring.sent.clear()
        response = served.chat(reasoning_effort="none")
        assert served.ring.requests[0].prompt.template_kwargs == expected  # type: ignore[union-attr]
        assert ("x-candor-adjustments" in response.headers) == (expected == {})
