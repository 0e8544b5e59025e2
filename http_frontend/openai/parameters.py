"""From checked fields to the parameters of a draw and of the text, the same for chat, completions and /generate."""

import math
import re
import secrets
import time
from typing import Any

import regex

from http_frontend.contract.kinds import refuse
from http_frontend.contract.review import Review
from http_frontend.contract.sampling import MAX_LOGPROB_ENTRIES
from http_frontend.front import Call
from http_frontend.openai.messages import prediction_text
from protocol.errors import RequestError
from protocol.requests import GenerateRequest, Prompt
from protocol.sampling import DetokenizeOptions, GrammarSpec, SamplingParameters
from runtime.engine_config import EngineConfig

SEED_MASK = 2**62 - 1
NEUTRAL_DRAW = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}

Fields = dict[str, Any]


def draw_defaults(config: EngineConfig) -> dict[str, float]:
    """What a field that is not given means: generation_config.json's word, or OpenAI's."""
    if config.args.sampling_defaults == "openai":
        return NEUTRAL_DRAW
    given = config.model.generation_defaults
    return NEUTRAL_DRAW | {name: given[name] for name in NEUTRAL_DRAW if given.get(name) is not None}


def max_tokens_of(fields: Fields, review: Review) -> tuple[int | None, str]:
    """(limit, the field that said so). The first of the two spellings wins and the other is told."""
    newer, older = fields.get("max_completion_tokens"), fields.get("max_tokens")
    if newer is not None and older is not None and newer != older:
        review.tell("max_tokens", "ignored", "max_completion_tokens wins", newer)
    if newer is not None:
        return newer, "max_completion_tokens"
    return older, "max_tokens"


def sampling_parameters(
    fields: Fields,
    config: EngineConfig,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    grammar: GrammarSpec | None = None,
) -> SamplingParameters:
    defaults = draw_defaults(config)
    min_tokens = fields.get("min_tokens", 0)
    if max_tokens is not None and min_tokens > max_tokens:
        refuse("min_tokens", f"must not exceed the {max_tokens} tokens of the limit, got {min_tokens}")
    budget = fields.get("thinking_token_budget", fields.get("max_thinking_tokens"))
    return SamplingParameters(
        temperature=fields.get("temperature", defaults["temperature"]),
        top_p=fields.get("top_p", defaults["top_p"]),
        top_k=max(0, int(fields.get("top_k", defaults["top_k"]))),
        min_p=fields.get("min_p", defaults["min_p"]),
        frequency_penalty=fields.get("frequency_penalty", 0.0),
        presence_penalty=fields.get("presence_penalty", 0.0),
        repetition_penalty=fields.get("repetition_penalty", defaults["repetition_penalty"]),
        seed=fields["seed"] & SEED_MASK if "seed" in fields else secrets.randbits(62),
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        ignore_eos=fields.get("ignore_eos", False),
        stop_token_ids=tuple(fields.get("stop_token_ids", ())),
        logit_bias=logit_bias_of(fields),
        allowed_token_ids=tuple(fields["allowed_token_ids"]) if "allowed_token_ids" in fields else None,
        bad_words=tuple(fields.get("bad_words", ())),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logprob_token_ids=tuple(fields.get("logprob_token_ids", ())),
        grammar=grammar,
        thinking_budget=None if budget is None or budget < 0 else budget,
    )


def check_whole_vocabulary(
    count: int | None, field: str, max_tokens: int | None, fields: Fields, config: EngineConfig
) -> None:
    """-1 asks for every token's logprob at every position: only in a whole answer, and a short one."""
    if count != -1:
        return
    if fields.get("stream", False):
        refuse(field, "the whole vocabulary is not available in a stream")
    most = max(1, MAX_LOGPROB_ENTRIES // config.model.vocab_size)
    if max_tokens is None or max_tokens > most:
        refuse(field, f"the whole vocabulary is available for at most {most} tokens: set the limit so")


def logit_bias_of(fields: Fields) -> dict[int, float] | None:
    """The bias by token id. JSON's keys are strings; only plain decimal ones are ids."""
    bias: dict[str, float] | None = fields.get("logit_bias")
    if not bias:
        return None
    for key in bias:
        if not (key.isascii() and key.isdecimal() and len(key) < 11 and int(key) < 2**31):
            refuse(f"logit_bias.{key[:64]}", "keys are token ids of the vocabulary")
    return {int(key): value for key, value in bias.items()}


# Counted repetitions are unrolled when an expression is compiled: a{1000000000} would take all memory there is. Verbose
# expressions could hide them in white space and comments.
_COUNTS = re.compile(r"\{(\d+)")
_VERBOSE = re.compile(r"\(\?[^():=!<>]*x")
MAX_REPETITIONS = 1_000


def check_regexes(value: str | list[str] | None, path: str) -> tuple[str, ...]:
    """The expressions, if each compiles in the detokenizer's engine, and into something of bounded size."""
    expressions = _texts(value)
    for position, expression in enumerate(expressions):
        place = path if isinstance(value, str) else f"{path}[{position}]"
        if _VERBOSE.search(expression):
            refuse(place, "must not use the flag x")
        counts = [int(count[:10]) for count in _COUNTS.findall("".join(expression.split())) if count]
        if math.prod(max(1, count) for count in counts) > MAX_REPETITIONS:
            refuse(place, f"its repetitions multiply to more than {MAX_REPETITIONS}")
        try:
            regex.compile(expression)
        except (regex.error, RecursionError, OverflowError, ValueError) as error:
            refuse(place, f"is not a regular expression: {error}")
    return expressions


def detokenize_options(fields: Fields, visible_special_tokens: tuple[str, ...] = ()) -> DetokenizeOptions:
    return DetokenizeOptions(
        stop=_texts(fields.get("stop")),
        stop_regex=check_regexes(fields.get("stop_regex"), "stop_regex"),
        include_stop=fields.get("no_stop_trim", False) or fields.get("include_stop_str_in_output", False),
        stop_in_reasoning=fields.get("stop_in_reasoning", False),
        skip_special_tokens=fields.get("skip_special_tokens", True),
        spaces_between_special_tokens=fields.get("spaces_between_special_tokens", True),
        visible_special_tokens=visible_special_tokens,
        stream_interval=fields.get("stream_interval", 1),
        min_tokens=fields.get("min_tokens", 0),
    )


def choices_of(fields: Fields, sampling: SamplingParameters, review: Review, wanted: int) -> tuple[int, int]:
    """(sequences to compute, copies of each): several greedy choices are one answer, copied and told."""
    if wanted == 1 or sampling.temperature > 0:
        return wanted, 1
    if review.config.args.greedy_n == "reject":
        refuse("n", f"must be 1 at temperature 0, got {wanted}: all choices would be the same")
    review.tell("n", "duplicated", "greedy choices are the same: computed once and copied", wanted)
    return 1, wanted


def check_stream_options(fields: Fields, review: Review) -> tuple[bool, bool]:
    """(usage chunk at the end, usage on every chunk)."""
    options = fields.get("stream_options")
    if not fields.get("stream", False):
        if options is not None:
            if review.config.args.stray_stream_options == "reject":
                raise RequestError(
                    "stream_options: only valid with stream", param="stream_options", code="invalid_value"
                )
            review.tell("stream_options", "ignored", "without stream there is nothing to set")
        return False, False
    options = options or {}
    by_default = review.config.args.stream_response_default_include_usage
    continuous = options.get("continuous_usage_stats", False)
    return options.get("include_usage", by_default or continuous), continuous


def generate_request(
    call: Call,
    worker: int,
    prompt: Prompt,
    sampling: SamplingParameters,
    detokenize: DetokenizeOptions,
    position: int = 0,
    **more: Any,
) -> GenerateRequest:
    """The request of one prompt of a call."""
    fields, args = call.fields, call.review.config.args
    now = time.time()
    limits = [limit for limit in (fields.get("request_timeout_s"), args.request_timeout_s) if limit is not None]
    name = f"{worker}-{call.id}"
    return GenerateRequest(
        request_id=name if position == 0 else f"{name}#{position}",
        model=call.served_model,
        prompt=prompt,
        sampling=sampling,
        detokenize=detokenize,
        priority=fields.get("priority", 0) if args.schedule_policy == "priority" else 0,
        cache_salt=fields.get("cache_salt") or fields.get("extra_key") or "",
        fairness_key=call.fairness_key,
        arrival_s=now,
        deadline_s=now + min(limits) if limits else None,
        queue_timeout_s=fields.get("queue_timeout_s"),
        truncate_prompt_tokens=fields.get("truncate_prompt_tokens"),
        # An echoed prompt's first token has no logprob to take its id from.
        wants_prompt_ids=wants_prompt_ids(fields)
        or (fields.get("echo", False) and fields.get("return_tokens_as_token_ids", False)),
        prediction=prediction_text(fields) if call.review.config.draft_tokens else "",
        replica=replica_of(fields, args.dp_size),
        **more,
    )


def replica_of(fields: Fields, replicas: int) -> int | None:
    """The replica that the request names, under either spelling."""
    name = next((name for name in ("routed_dp_rank", "data_parallel_rank") if name in fields), None)
    if name is None:
        return None
    rank: int = fields[name]
    if rank >= replicas:
        refuse(name, f"must be below the number of replicas, {replicas}; got {rank}")
    return rank


def wants_prompt_ids(fields: Fields) -> bool:
    return bool(fields.get("return_token_ids") or fields.get("return_prompt_token_ids"))


def _texts(value: str | list[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
