"""Requests to ids: limits, vocabulary, names, reasoning, stops, and what a malformed one is told."""

from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from protocol.errors import RequestError
from protocol.ids import pack_ids, unpack_ids
from protocol.links import HttpInbox, decoder, encode
from protocol.requests import (
    Adjustment,
    ChatPrompt,
    DetokenizeRequest,
    EngineRequest,
    GenerateRequest,
    Prompt,
    TextPrompt,
    TokenizeRequest,
    TokensPrompt,
)
from protocol.sampling import GrammarSpec, ReasoningFormat, SamplingParameters
from tokenizer_manager.preparation import RequestPreparer

HI = ChatPrompt([{"role": "user", "content": "Hi"}])
THINK = ReasoningFormat("<think>", "</think>")


def tokens(count: int) -> TokensPrompt:
    return TokensPrompt(pack_ids([5] * count))


def request(prompt: Prompt, sampling: SamplingParameters | None = None, **fields: Any) -> GenerateRequest:
    return GenerateRequest("0-a", fields.pop("model", "tiny"), prompt, sampling or SamplingParameters(), **fields)


@pytest.fixture
def prepare(tiny: Tokenizer, setup: Any) -> Any:
    def run(
        prompt: Prompt, sampling: SamplingParameters | None = None, flags: dict[str, Any] | None = None, **fields: Any
    ) -> EngineRequest:
        engine: EngineRequest = (
            setup(tiny, **(flags or {})).preparer.prepare(request(prompt, sampling, **fields)).engine
        )
        return engine

    return run


def refusal(prepare: Any, *arguments: Any, **named: Any) -> Any:
    with pytest.raises(RequestError) as caught:
        prepare(*arguments, **named)
    return caught.value.info


@pytest.mark.parametrize(
    ("grammar", "stops", "told"),
    [
        (GrammarSpec("regex", "a+"), (300,), ["stop_token_ids"]),
        (GrammarSpec("regex", "a+"), (0, 1, 2), []),  # control tokens are no text anyway
        (GrammarSpec("regex", "a+"), (), []),
        (GrammarSpec("structural_tag", "{}"), (300,), []),
        (None, (300,), []),
    ],
)
def test_stop_ids_that_a_grammar_keeps_out_are_told(
    prepare: Any, grammar: GrammarSpec | None, stops: tuple[int, ...], told: list[str]
) -> None:
    engine = prepare(tokens(3), SamplingParameters(grammar=grammar, stop_token_ids=stops))
    assert [adjustment.field for adjustment in engine.adjustments] == told


@pytest.mark.parametrize(
    ("sampling", "told"),
    [
        (SamplingParameters(temperature=0.3, top_p=0.9, logit_bias={5: 1.0}, min_tokens=2), []),
        (SamplingParameters(frequency_penalty=0.1), ["prediction"]),
        (SamplingParameters(presence_penalty=-0.1), ["prediction"]),
        (SamplingParameters(repetition_penalty=1.1), ["prediction"]),
        (SamplingParameters(bad_words=("Hi",)), ["prediction"]),
        (SamplingParameters(grammar=GrammarSpec("regex", "a+")), ["prediction"]),
        (SamplingParameters(thinking_budget=5), ["prediction"]),
    ],
)
def test_a_prediction_becomes_ids_and_one_that_goes_unused_is_told(
    tiny: Tokenizer, prepare: Any, sampling: SamplingParameters, told: list[str]
) -> None:
    engine = prepare(tokens(3), sampling, prediction="Hi there")
    assert unpack_ids(engine.prediction_ids) == tiny.encode("Hi there", add_special_tokens=False).ids
    assert [adjustment.field for adjustment in engine.adjustments] == told
    assert prepare(tokens(3), sampling).adjustments == ()


def test_no_more_of_a_prediction_is_kept_than_the_context_holds(prepare: Any) -> None:
    engine = prepare(tokens(3), SamplingParameters(), {"context_length": 100}, prediction="a b " * 500)
    assert len(unpack_ids(engine.prediction_ids)) == 100
    long_words = prepare(tokens(3), SamplingParameters(), {"context_length": 100}, prediction=" " * 3_199 + "Hi there")
    cut = prepare(tokens(3), SamplingParameters(), {"context_length": 100}, prediction=" " * 3_199 + "H")
    assert long_words.prediction_ids == cut.prediction_ids


def test_ids_that_the_model_does_not_have_are_not_predicted(tiny: Tokenizer, setup: Any) -> None:
    ids = tiny.encode("Hi there", add_special_tokens=False).ids
    made = setup(tiny)
    config = msgspec.structs.replace(made.config, model=msgspec.structs.replace(made.model, vocab_size=max(ids)))
    preparer = RequestPreparer(config, made.tokenizer, made.renderer)
    engine = preparer.prepare(request(tokens(3), prediction="Hi there")).engine
    assert unpack_ids(engine.prediction_ids) == [token_id for token_id in ids if token_id < max(ids)]


@pytest.mark.parametrize("overflow", ["reject", "clamp"])
@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "granted"),
    [(10, None, 90), (10, 90, 90), (10, 5, 5), (99, None, 1), (100, 0, 0), (10, 0, 0)],
)
def test_what_fits_is_granted(
    prepare: Any, overflow: str, prompt_tokens: int, max_tokens: int | None, granted: int
) -> None:
    flags = {"context_length": 100, "context_overflow": overflow}
    engine = prepare(tokens(prompt_tokens), SamplingParameters(max_tokens=max_tokens), flags)
    assert engine.sampling.max_tokens == granted
    assert engine.adjustments == ()
    assert len(unpack_ids(engine.prompt_ids)) == prompt_tokens


@pytest.mark.parametrize("overflow", ["reject", "clamp"])
@pytest.mark.parametrize(("prompt_tokens", "max_tokens"), [(100, None), (100, 1), (101, 0), (500, 5)])
def test_a_prompt_that_fills_the_context(
    prepare: Any, overflow: str, prompt_tokens: int, max_tokens: int | None
) -> None:
    flags = {"context_length": 100, "context_overflow": overflow}
    info = refusal(prepare, tokens(prompt_tokens), SamplingParameters(max_tokens=max_tokens), flags)
    assert (info.status, info.code, info.param) == (400, "context_length_exceeded", "prompt")
    assert str(prompt_tokens) in info.message
    assert "100" in info.message


def test_more_than_the_context_is_rejected_with_all_counts(prepare: Any) -> None:
    info = refusal(
        prepare,
        tokens(11),
        SamplingParameters(max_tokens=977),
        {"context_length": 100},
        max_tokens_field="max_completion_tokens",
    )
    assert (info.status, info.code, info.param) == (400, "context_length_exceeded", "max_completion_tokens")
    for count in ("11", "977", "100", "89", "max_completion_tokens"):
        assert count in info.message


def test_more_than_the_context_is_clamped_and_told(prepare: Any) -> None:
    flags = {"context_length": 100, "context_overflow": "clamp"}
    engine = prepare(tokens(11), SamplingParameters(max_tokens=977, min_tokens=95), flags)
    assert (engine.sampling.max_tokens, engine.sampling.min_tokens) == (89, 89)
    told = [(adjustment.field, adjustment.action, adjustment.value) for adjustment in engine.adjustments]
    assert told == [("max_tokens", "clamped", 89), ("min_tokens", "clamped", 89)]


@pytest.mark.parametrize(
    "sampling", [SamplingParameters(min_tokens=5, max_tokens=4), SamplingParameters(min_tokens=91)]
)
def test_more_at_least_than_at_most(prepare: Any, sampling: SamplingParameters) -> None:
    assert refusal(prepare, tokens(10), sampling, {"context_length": 100}).param == "min_tokens"


@pytest.mark.parametrize(
    ("keep", "max_tokens", "kept"), [(3, 1, 3), (500, 1, 120), (-1, 30, 70), (-1, None, 99), (-1, 0, 100)]
)
def test_the_prompts_end_is_kept(prepare: Any, keep: int, max_tokens: int | None, kept: int) -> None:
    prompt = TokensPrompt(pack_ids(range(120)))
    sampling = SamplingParameters(max_tokens=max_tokens)
    fields: dict[str, Any] = {"truncate_prompt_tokens": keep}
    if kept > 100:
        assert refusal(prepare, prompt, sampling, {"context_length": 100}, **fields).code == "context_length_exceeded"
        return
    engine = prepare(prompt, sampling, {"context_length": 100}, **fields)
    assert unpack_ids(engine.prompt_ids) == list(range(120 - kept, 120))


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (TextPrompt(""), "prompt"),
        (TokensPrompt(b""), "prompt"),
        (TokensPrompt(b"\1\2\3"), "prompt"),
        (TokensPrompt(pack_ids([5, -1])), "prompt"),
        (TokensPrompt(pack_ids([5, 2**31 - 1])), "prompt"),
        (ChatPrompt([]), "messages"),
        (ChatPrompt([{"content": "x"}]), "messages[0].role"),
        (ChatPrompt([{"role": "user", "content": 5}]), "messages[0].content"),
        (ChatPrompt([{"role": "assistant", "content": "", "tool_calls": [5]}]), "messages[0].tool_calls[0]"),
    ],
)
def test_a_bad_prompt_is_named(prepare: Any, prompt: Prompt, param: str) -> None:
    info = refusal(prepare, prompt)
    assert (info.status, info.param) == (400, param)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {10**6: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("stop_token_ids", (10**6,)),
        ("allowed_token_ids", (3, 10**6)),
        ("allowed_token_ids", ()),
        ("logprob_token_ids", (-5,)),
        ("bad_words", ("fine", "  ")),
    ],
)
def test_ids_that_the_model_does_not_have(prepare: Any, field: str, value: Any) -> None:
    info = refusal(prepare, HI, SamplingParameters(**{field: value}))
    assert info.status == 400
    assert info.param.startswith(field)


@pytest.mark.parametrize(
    "taken_away",
    [{"banned_sequences": ((7,),)}, {"banned_sequences": ((3, 7),)}, {"stop_token_ids": (7,), "min_tokens": 2}],
)
def test_something_must_be_left_of_the_allowed_ids(prepare: Any, taken_away: dict[str, Any]) -> None:
    info = refusal(prepare, HI, SamplingParameters(allowed_token_ids=(7,), **taken_away))
    assert info.status == 400 and info.param == "allowed_token_ids"
    prepare(HI, SamplingParameters(allowed_token_ids=(7, 8), **taken_away))
    # A grammar overrules them, and what it lets through is told.
    prepare(HI, SamplingParameters(allowed_token_ids=(7,), grammar=GrammarSpec("json_object"), **taken_away))


def test_bad_words_are_banned_at_the_start_and_behind_a_blank(tiny: Tokenizer, prepare: Any) -> None:
    sampling = SamplingParameters(bad_words=("weather", " Paris"), banned_sequences=((7, 8),))
    banned = prepare(HI, sampling).sampling.banned_sequences
    texts = [tiny.decode(list(sequence)) for sequence in banned[1:]]
    assert banned[0] == (7, 8)
    assert texts == ["weather", " weather", "Paris", " Paris"]


def test_caches_are_separate_by_salt(prepare: Any) -> None:
    assert prepare(HI).namespace == ""
    assert len({prepare(HI, cache_salt=salt).namespace for salt in ("", "a", "b", "0:")}) == 4


ENDS = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("end", "always", "opened"),
    [
        ("assistant\n", False, False),
        ("assistant\n", True, True),
        ("assistant\n<think>\n", False, True),
        ("assistant\n<think>\n\n</think>\n\n", True, False),
        ("assistant\n</think>", True, False),
    ],
)
def test_the_prompts_end_shows_whether_reasoning_is_open(
    tiny: Tokenizer, prepare: Any, end: str, always: bool, opened: bool
) -> None:
    reasoning = ReasoningFormat("<think>", "</think>", always)
    span = prepare(HI, None, {"template": ENDS + end.replace("\n", "{{ '\\n' }}")}, reasoning=reasoning).reasoning_span
    assert span.prompt_opened == opened
    assert span.open_ids == (tiny.token_to_id("<think>"),)
    assert span.close_ids == (tiny.token_to_id("</think>"),)
    for prompt in (TextPrompt("Hi" + end), TokensPrompt(pack_ids(tiny.encode("Hi" + end).ids))):
        assert prepare(prompt, reasoning=reasoning).reasoning_span == span


def test_markers_of_several_tokens_are_those_inside_a_text(llama_like: Tokenizer, setup: Any) -> None:
    reasoning = ReasoningFormat("[think]", "[/think]")
    engine = setup(llama_like).preparer.prepare(request(HI, reasoning=reasoning)).engine
    span = engine.reasoning_span
    assert span is not None
    inside = llama_like.encode("a\n[think]so[/think]", add_special_tokens=False).ids
    assert len(span.open_ids) > 1
    assert any(tuple(inside[at : at + len(span.open_ids)]) == span.open_ids for at in range(len(inside)))


@pytest.mark.parametrize(
    ("half", "opened"), [("<think>so far", True), ("<think>x</think>The", False), ("The answer", False)]
)
def test_a_continued_message_shows_it_too(prepare: Any, half: str, opened: bool) -> None:
    messages = [*HI.messages, {"role": "assistant", "content": half}]
    prompt = ChatPrompt(messages, continue_final_message=True, add_generation_prompt=False)
    assert prepare(prompt, reasoning=THINK).reasoning_span.prompt_opened == opened


def test_a_begin_token_is_never_doubled(llama_like: Tokenizer, setup: Any) -> None:
    begin = llama_like.token_to_id("<s>")
    assert begin is not None

    def ids(prompt: Prompt, template: str) -> list[int]:
        return unpack_ids(setup(llama_like, template).preparer.prepare(request(prompt)).engine.prompt_ids)

    chat = {"messages": [{"role": "user", "content": "Hello <s> there"}]}
    for add_special_tokens in (False, True):
        prompt = ChatPrompt(chat["messages"], add_special_tokens=add_special_tokens)
        assert ids(prompt, "{{ bos_token }}{{ messages[0].content }}").count(begin) == 1
        assert ids(prompt, "{{ messages[0].content }}").count(begin) == int(add_special_tokens)
    assert [ids(TextPrompt(text), "x").count(begin) for text in ("<s>Hello", "Hello")] == [1, 1]
    assert ids(TextPrompt("Hello", add_special_tokens=False), "x").count(begin) == 0
    classic = setup(llama_like, None, name="Llama-2-7b-chat").preparer.prepare(request(HI)).engine
    assert unpack_ids(classic.prompt_ids).count(begin) == 1


def test_a_classic_templates_stops_are_added(tiny: Tokenizer, prepare: Any) -> None:
    engine = prepare(HI, None, {"template": None, "chat_template": "llama-2"})
    assert engine.detokenize.stop == ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>")
    engine = prepare(HI, None, {"template": None, "chat_template": "chatml"})
    assert engine.detokenize.stop == ()
    assert engine.eos_token_ids == (tiny.token_to_id("<|im_end|>"), tiny.token_to_id("<|endoftext|>"))


def test_the_rest_of_the_request_is_passed_on(prepare: Any) -> None:
    fields: dict[str, Any] = {
        "n": 3,
        "attempt": 2,
        "priority": 5,
        "fairness_key": "k",
        "arrival_s": 7.0,
        "deadline_s": 9.0,
        "queue_timeout_s": 1.0,
        "wants_prompt_ids": True,
        "probe": True,
        "suspect": True,
    }
    engine = prepare(HI, SamplingParameters(seed=9, stop_token_ids=(4,)), **fields)
    assert {name: getattr(engine, name) for name in fields} == fields
    assert (engine.sampling.seed, engine.sampling.stop_token_ids) == (9, (4,))


def test_what_render_answers(tiny: Tokenizer, setup: Any) -> None:
    prepared = setup(tiny)
    rendered = prepared.preparer.render(request(HI, SamplingParameters(temperature=0.5), cache_salt="s"))
    engine = prepared.preparer.prepare(request(HI, SamplingParameters(temperature=0.5), cache_salt="s")).engine
    assert rendered.text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert (rendered.ids, rendered.namespace) == (engine.prompt_ids, engine.namespace)
    assert (rendered.template, rendered.template_source) == ("checkpoint", "checkpoint")
    assert rendered.messages is not None and msgspec.json.decode(rendered.messages) == HI.messages
    assert rendered.sampling["temperature"] == 0.5
    assert rendered.sampling["top_p"] == 1.0
    assert rendered.sampling["max_tokens"] == engine.sampling.max_tokens
    shortened = prepared.preparer.render(request(HI, truncate_prompt_tokens=2))
    assert shortened.text == tiny.decode(unpack_ids(shortened.ids), skip_special_tokens=False)


def test_a_history_with_numbers_that_only_json_has_can_be_rendered(tiny: Tokenizer, setup: Any) -> None:
    """The template gets the arguments parsed; what it got must reach the client all the same."""
    arguments = '{"n": 18446744073709551617}'
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    history = [*HI.messages, {"role": "assistant", "content": "", "tool_calls": [call]}, *HI.messages]
    template = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}{% endfor %}"
    )
    rendered = setup(tiny, template).preparer.render(request(ChatPrompt(history), SamplingParameters()))
    sent = decoder(HttpInbox).decode(encode(rendered))
    (shown,) = [message for message in msgspec.json.decode(sent.messages) if "tool_calls" in message]
    assert shown["tool_calls"][0]["function"]["arguments"] == {"n": 2**64 + 1}


def test_tokens_and_back(tiny: Tokenizer, setup: Any) -> None:
    preparer = setup(tiny).preparer
    tokenized = preparer.tokenize(TokenizeRequest("0-q", "tiny", TextPrompt("Hello<|im_end|>")), 0.0)
    ids = unpack_ids(tokenized.ids)
    assert tokenized.tokens == [tiny.id_to_token(token_id) for token_id in ids]
    assert tokenized.max_model_len == 2048
    unread = ChatPrompt(HI.messages, template_kwargs={"nobody_reads_me": 1})
    (told,) = preparer.tokenize(TokenizeRequest("0-q", "tiny", unread), 0.0).adjustments
    assert told.field == "chat_template_kwargs.nobody_reads_me"

    def back(skip: bool) -> str:
        text: str = preparer.detokenize(DetokenizeRequest("0-q", "tiny", tokenized.ids, skip)).text
        return text

    assert (back(False), back(True)) == ("Hello<|im_end|>", "Hello")
    with pytest.raises(RequestError):
        preparer.detokenize(DetokenizeRequest("0-q", "tiny", pack_ids([10**6])))


def test_deep_nesting_is_refused(prepare: Any) -> None:
    nested: Any = {}
    for _ in range(5000):
        nested = {"a": nested}
    tools = [{"type": "function", "function": {"name": "f", "parameters": nested}}]
    info = refusal(prepare, ChatPrompt(HI.messages, tools=tools))
    assert (info.status, info.param) == (400, "messages")


def test_adjustments_of_all_stages_travel(prepare: Any) -> None:
    prompt = ChatPrompt([{"role": "developer", "content": "x"}], template_kwargs={"a": 1})
    flags = {"context_length": 100, "context_overflow": "clamp"}
    engine = prepare(prompt, SamplingParameters(max_tokens=1000), flags)
    assert all(isinstance(told, Adjustment) for told in engine.adjustments)
    assert [told.field for told in engine.adjustments] == ["chat_template_kwargs.a", "messages[0].role", "max_tokens"]
