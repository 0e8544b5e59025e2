"""The backend with its real worker process: what is hostile costs its own request, and nobody else."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import pytest

from protocol.errors import ErrorInfo
from protocol.sampling import GrammarSpec
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.server_args import ServerArgs
from runtime.vocabulary import Vocabulary
from scheduler.grammar.backend import MAX_SPEC_CHARACTERS, XGrammarBackend
from scheduler.grammar.state import XGrammarState, XGrammarTemplate
from tests.samples import config_of

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
}
ENDS = (0, 2)
SLOW = 'root ::= s s s s s s s s s s s s\ns ::= "x" c{0,200} "y" | "z" c{0,190} "w"\nc ::= [ -~é-ü]'
POLLED: dict[int, Any] = {}
"""Outcomes by ticket: a test may wait for one while another comes."""

AMBIGUOUS = 'root ::= s\ns ::= s s | "a" | "b"'


def configuration(tokenizer_file: Path, vocab_size: int) -> EngineConfig:
    model = ModelDescription(
        name="m",
        path="",
        format="dummy",
        served_names=("m",),
        architecture="LlamaForCausalLM",
        config={},
        context_length=2048,
        vocab_size=vocab_size,
        eos_token_ids=(2,),
        bos_token_id=None,
        tokenizer_file=str(tokenizer_file),
    )
    return config_of(
        ServerArgs(grammar_compile_timeout_s=3.0),
        model,
        kv_tokens=1024,
        max_running_requests=8,
        max_batch_tokens=256,
        chunked_prefill_size=256,
        threads=2,
    )


@pytest.fixture(scope="module")
def backend(tokenizer_file: Path, vocabulary: Vocabulary) -> Iterator[XGrammarBackend]:
    # Embeddings are often padded: ids that no token has are never allowed.
    made = XGrammarBackend(configuration(tokenizer_file, vocabulary.size + 40))
    yield made
    made.close()


def outcomes(backend: XGrammarBackend, *tickets: int, within_s: float = 60.0) -> list[XGrammarTemplate | ErrorInfo]:
    deadline = time.monotonic() + within_s
    while not all(ticket in POLLED for ticket in tickets):
        assert time.monotonic() < deadline
        POLLED.update(backend.poll())
        time.sleep(0.002)
    return [POLLED[ticket] for ticket in tickets]


def template(backend: XGrammarBackend, kind: Any, text: str = "") -> XGrammarTemplate:
    (outcome,) = outcomes(backend, backend.compile(GrammarSpec(kind, text)))
    assert isinstance(outcome, XGrammarTemplate), outcome
    return outcome


def refusal(backend: XGrammarBackend, kind: Any, text: str, field: str = "response_format") -> ErrorInfo:
    (outcome,) = outcomes(backend, backend.compile(GrammarSpec(kind, text, field)))
    assert isinstance(outcome, ErrorInfo)
    return outcome


def token_id(backend: XGrammarBackend, token: str) -> int:
    found = backend._forced._tokenizer.token_to_id(token)
    assert found is not None
    return found


def allowed_ids(backend: XGrammarBackend, state: XGrammarState) -> list[int]:
    words, late = backend.collect_masks([state], 5.0)
    assert late == []
    return numpy.flatnonzero(numpy.unpackbits(numpy.frombuffer(words, numpy.uint8), bitorder="little")).tolist()


def test_equal_specs_are_compiled_once(backend: XGrammarBackend) -> None:
    spec = GrammarSpec("json_schema", json.dumps(PERSON))
    before = backend.statistics()
    first, second = outcomes(backend, backend.compile(spec), backend.compile(spec))
    assert first is second
    ticket = backend.compile(GrammarSpec("json_schema", json.dumps(PERSON), field="guided_json"))
    assert backend.poll() == [(ticket, first)]
    after = backend.statistics()
    assert after["compilations"] - before["compilations"] == 1
    assert after["cache_hits"] - before["cache_hits"] == 1
    assert after["cache_bytes"] > before["cache_bytes"]


def test_a_refusal_names_the_keyword_and_the_field_and_is_remembered(backend: XGrammarBackend) -> None:
    text = '{"properties": {"a": {"not": {}}}}'
    error = refusal(backend, "json_schema", text, "guided_json")
    assert (error.status, error.param, error.code) == (400, "guided_json", "unsupported_grammar")
    assert error.message.startswith("guided_json: ") and "'not' at $.properties.a" in error.message
    ticket = backend.compile(GrammarSpec("json_schema", text))
    ((found, again),) = backend.poll()
    assert found == ticket
    assert isinstance(again, ErrorInfo) and again.param == "response_format"


@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        ("json_schema", "x" * (MAX_SPEC_CHARACTERS + 1), "grammar_too_large"),
        ("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000, "unsupported_grammar"),
        ("json_schema", '{"type": "string\0"}', "unsupported_grammar"),
        ("ebnf", "root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000, "invalid_grammar"),
        ("ebnf", "root ::= missing", "invalid_grammar"),
        ("ebnf", "start: (", "invalid_grammar"),
        ("regex", "(a", "unsupported_grammar"),
        ("structural_tag", '{"format": {"type": "wibble"}}', "invalid_grammar"),
    ],
)
def test_what_can_not_be_compiled_is_a_400(backend: XGrammarBackend, kind: Any, text: str, code: str) -> None:
    error = refusal(backend, kind, text)
    assert (error.status, error.code) == (400, code), error


def test_a_slow_compilation_ends_at_its_time_and_holds_up_nobody(backend: XGrammarBackend) -> None:
    slow = backend.compile(GrammarSpec("ebnf", SLOW))
    assert isinstance(template(backend, "regex", "[ab]{2}"), XGrammarTemplate)
    (error,) = outcomes(backend, slow)
    assert isinstance(error, ErrorInfo)
    assert (error.status, error.code) == (400, "grammar_too_complex")


def test_a_cancelled_compilation_says_nothing_more(backend: XGrammarBackend) -> None:
    slow = backend.compile(GrammarSpec("ebnf", SLOW + " "))
    shared = backend.compile(GrammarSpec("ebnf", SLOW + " "))
    backend.cancel(slow)
    assert backend.statistics()["compiling"] == 1
    backend.cancel(shared)
    assert backend.statistics()["compiling"] == 0
    template(backend, "regex", "[ab]{3}")
    known = backend.compile(GrammarSpec("regex", "[ab]{3}"))
    backend.cancel(known)
    assert backend.poll() == []


def test_a_dead_worker_is_replaced_and_its_work_done_again(backend: XGrammarBackend) -> None:
    backend.poll()
    os.kill(backend._compiler._worker._process.pid, signal.SIGKILL)
    assert isinstance(template(backend, "regex", "[ab]{4}"), XGrammarTemplate)
    assert backend.statistics()["compiler_restarts"] == 1


def test_a_state_knows_all_end_ids(backend: XGrammarBackend) -> None:
    state = template(backend, "choice", '["ab", "abc"]').new_state(ENDS)
    ids = {token: token_id(backend, token) for token in "abc"}
    assert not set(ENDS) & set(allowed_ids(backend, state))
    assert state.accept([ids["a"], ids["b"]])
    assert set(allowed_ids(backend, state)) == {*ENDS, ids["c"]}
    assert state.accept([ids["c"]]) and not state.finished
    assert set(allowed_ids(backend, state)) == set(ENDS)
    assert state.accept([ENDS[0]])
    assert state.finished
    assert not state.accept([ENDS[0]])
    assert state.forced_ids() == ()


def test_without_end_ids_the_models_own_end_it(backend: XGrammarBackend) -> None:
    state = template(backend, "choice", '["a"]').new_state(())
    assert state.accept([token_id(backend, "a")])
    assert allowed_ids(backend, state) == [2]


def test_accept_is_all_or_nothing(backend: XGrammarBackend) -> None:
    state = template(backend, "regex", "a{3}").new_state(ENDS)
    a, b = (token_id(backend, token) for token in "ab")
    before = allowed_ids(backend, state)
    assert not state.accept([a, a, b])
    assert allowed_ids(backend, state) == before
    assert state.accept([a, a, a])


def test_control_tokens_are_no_text(backend: XGrammarBackend, vocabulary: Vocabulary) -> None:
    state = template(backend, "regex", r"[\s\S]*").new_state(ENDS)
    allowed = set(allowed_ids(backend, state))
    assert allowed & vocabulary.special_ids == set(ENDS)
    assert max(allowed) < vocabulary.size


def test_a_rebuilt_state_agrees(backend: XGrammarBackend) -> None:
    made = template(backend, "json_schema", json.dumps(PERSON))
    ids = backend._forced._tokenizer.encode('{"name": "Ada').ids
    one, other = made.new_state(ENDS), made.new_state(ENDS)
    for id in ids:
        allowed_ids(backend, one)
        assert one.accept([id])
    assert other.accept(ids)
    assert allowed_ids(backend, one) == allowed_ids(backend, other)


def test_an_ambiguous_grammar_fails_alone(backend: XGrammarBackend) -> None:
    hostile = template(backend, "ebnf", AMBIGUOUS).new_state(ENDS)
    honest = template(backend, "json_schema", json.dumps(PERSON)).new_state(ENDS)
    a = token_id(backend, "a")
    slowest_s = 0.0
    for _ in range(2000):
        if backend.failure(hostile) is not None:
            break
        honest.mask_is_current = False
        began = time.monotonic()
        _, late = backend.collect_masks([honest, hostile], 0.02)
        slowest_s = max(slowest_s, time.monotonic() - began)
        assert 0 not in late or time.monotonic() - began > 0.02
        if 1 not in late:
            assert hostile.accept([a])
    error = backend.failure(hostile)
    assert error is not None and error.status == 400
    assert backend.failure(honest) is None
    words, late = backend.collect_masks([honest, hostile], 5.0)
    assert late == [1]
    assert not any(words[len(words) // 2 :])
    assert any(words[: len(words) // 2])


@pytest.mark.parametrize("seed", range(12))
def test_forced_tokens_and_masks_agree_to_the_end(backend: XGrammarBackend, vocabulary: Vocabulary, seed: int) -> None:
    random = numpy.random.default_rng(seed)
    state = template(backend, "json_schema", json.dumps(PERSON)).new_state(ENDS)
    text, forced_count = b"", 0
    for _ in range(150):
        forced = state.forced_ids()
        if forced:
            assert forced[0] in allowed_ids(backend, state)
            assert state.accept(forced)
            forced_count += len(forced)
            text += b"".join(map(vocabulary.token_bytes, forced))
            continue
        allowed = allowed_ids(backend, state)
        token = int(allowed[random.integers(len(allowed))])
        assert state.accept([token])
        if state.finished:
            break
        text += vocabulary.token_bytes(token)
    assert state.finished
    assert forced_count > 2
    jsonschema.validate(json.loads(text), PERSON)


def test_control_tokens_serve_where_a_structural_tag_names_them(
    backend: XGrammarBackend, vocabulary: Vocabulary
) -> None:
    control = 1
    tag = {
        "type": "tag",
        "begin": {"type": "token", "token": vocabulary.token(control)},
        "content": {"type": "json_schema", "json_schema": {"enum": ["a"]}},
        "end": "",
    }
    state = template(backend, "structural_tag", json.dumps({"format": tag})).new_state(ENDS)
    assert allowed_ids(backend, state) == [control]
    assert state.accept([control])
    assert control not in allowed_ids(backend, state)
    free = {
        "type": "triggered_tags",
        "triggers": [vocabulary.token(control)],
        "tags": [{**tag, "begin": vocabulary.token(control)}],
    }
    state = template(backend, "structural_tag", json.dumps({"format": free})).new_state(ENDS)
    assert control in allowed_ids(backend, state)
    assert state.accept([control])
    assert all(vocabulary.token(id).startswith('"') for id in allowed_ids(backend, state))


def test_a_token_that_is_decided_while_a_mask_is_under_way_counts(backend: XGrammarBackend) -> None:
    made = template(backend, "regex", "a{50}")
    a = token_id(backend, "a")
    states = [made.new_state(ENDS) for _ in range(40)]
    for _ in range(20):
        backend.request_masks(states)
        assert all(state.accept([a]) for state in states)
    expected = made.new_state(ENDS)
    assert expected.accept([a] * 20)
    for state in states:
        assert allowed_ids(backend, state) == allowed_ids(backend, expected)
