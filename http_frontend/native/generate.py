"""POST /generate: from SGLang's body to requests and the form of their answer."""

import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from http_frontend.contract.kinds import refuse
from http_frontend.contract.native import GENERATE
from http_frontend.front import Call, Front, front_of
from http_frontend.generation import Generation
from http_frontend.native.native_form import NativeForm, NativeShape
from http_frontend.openai.constraints import grammar_of
from http_frontend.openai.parameters import detokenize_options, generate_request, sampling_parameters
from protocol.ids import pack_ids
from protocol.requests import GenerateRequest, Prompt, TextPrompt, TokensPrompt

DEFAULT_MAX_NEW_TOKENS = 128


async def generate(request: Request) -> Response:
    front = front_of(request)
    call = await front.accept(request, GENERATE)
    requests, form = build_native(front, call)
    return Generation(front.in_flight, requests, form, call.review, call.fields.get("stream", False), call.headers)


def build_native(front: Front, call: Call) -> tuple[list[GenerateRequest], NativeForm]:
    fields = call.fields
    prompts, batched = prompts_of(fields)
    size = len(prompts)
    samplings = fields.get("sampling_params", {})
    if isinstance(samplings, list) and len(samplings) != size:
        refuse("sampling_params", f"a list needs one entry per prompt, {size}; got {len(samplings)}")
    rids = fields.get("rid")
    if isinstance(rids, list) and (len(rids) != size or len(set(rids)) != size):
        refuse("rid", f"a list needs one different id per prompt, {size} of them")
    requests: list[GenerateRequest] = []
    copies: list[int] = []
    for position, prompt in enumerate(prompts):
        sampling = samplings[position] if isinstance(samplings, list) else samplings
        request = _request(front, call, prompt, sampling, position)
        copies.append(sampling.get("n", 1) if request.n < sampling.get("n", 1) else 1)
        if isinstance(rids, list):
            request = _renamed(request, f"{front.worker}-{rids[position]}")
        requests.append(request)
    shape = NativeShape(
        ids=tuple(request.request_id.partition("-")[2] for request in requests),
        sequences=tuple(request.n for request in requests),
        copies=tuple(copies),
        batched=batched or any(request.n * copy > 1 for request, copy in zip(requests, copies, strict=True)),
        logprob_starts=tuple(_logprob_start(fields, position) for position in range(size)),
        with_text=fields.get("return_text_in_logprobs", False),
        incremental=fields.get("incremental_streaming_output", False),
        returns_prompt_ids=fields.get("return_prompt_token_ids", False),
        returns_adjustments=fields.get("return_adjustments", False),
        began_s=time.time(),
        asked_ids=len(fields.get("token_ids_logprob", ())),
    )
    return requests, NativeForm(shape, call.review)


def prompts_of(fields: dict[str, Any]) -> tuple[list[Prompt], bool]:
    """(prompts, whether they came as a batch)."""
    given = [name for name in ("text", "input_ids") if name in fields]
    if len(given) != 1:
        refuse("text", "give either text or input_ids", "missing_required_parameter" if not given else "invalid_value")
    name, value = given[0], fields[given[0]]
    if isinstance(value, str) or isinstance(value[0], int):
        return [_prompt(value, name)], False
    return [_prompt(one, f"{name}[{position}]") for position, one in enumerate(value)], True


def _prompt(value: str | list[int], field: str) -> Prompt:
    return TextPrompt(value, field=field) if isinstance(value, str) else TokensPrompt(pack_ids(value), field)


def _request(front: Front, call: Call, prompt: Prompt, given: dict[str, Any], position: int) -> GenerateRequest:
    fields = call.fields
    # SGLang's spellings, as the shared reading knows them.
    sampled = given | {
        name: given[other]
        for name, other in (("seed", "sampling_seed"), ("min_tokens", "min_new_tokens"))
        if other in given
    }
    sampled |= {name: fields[name] for name in ("max_thinking_tokens",) if name in fields}
    wants = _at(fields.get("return_logprob", False), position)
    if "token_ids_logprob" in fields:
        if not wants:
            refuse("token_ids_logprob", "needs return_logprob to be true")
        sampled["logprob_token_ids"] = fields["token_ids_logprob"]
    top = _at(fields.get("top_logprobs_num", 0), position) if wants else None
    limit = given.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    if limit == 0:
        refuse("sampling_params.max_new_tokens", "must be at least 1")
    sampling = sampling_parameters(
        sampled,
        front.config,
        max_tokens=limit,
        logprobs=top,
        prompt_logprobs=top if _logprob_start(fields, position) is not None else None,
        grammar=grammar_of(sampled, front.config),
    )
    n = given.get("n", 1)
    if n > 1 and sampling.temperature == 0:
        if front.config.args.greedy_n == "reject":
            refuse("sampling_params.n", f"must be 1 at temperature 0, got {n}: all choices would be the same")
        call.review.tell("sampling_params.n", "duplicated", "greedy choices are the same: computed once and copied", n)
        n = 1
    return generate_request(
        call,
        front.worker,
        prompt,
        sampling,
        detokenize_options(sampled),
        position,
        n=n,
        reasoning=front.parsers.budget_format(sampling),
        max_tokens_field="sampling_params.max_new_tokens",
    )


def _renamed(request: GenerateRequest, request_id: str) -> GenerateRequest:
    return msgspec.structs.replace(request, request_id=request_id)


def _logprob_start(fields: dict[str, Any], position: int) -> int | None:
    """From which prompt token on logprobs are wanted; None: none of the prompt's."""
    start = _at(fields.get("logprob_start_len", -1), position)
    return start if start >= 0 and _at(fields.get("return_logprob", False), position) else None


def _at(value: Any, position: int) -> Any:
    if not isinstance(value, list):
        return value
    if position >= len(value):
        refuse("return_logprob", "lists need one entry per prompt")
    return value[position]
