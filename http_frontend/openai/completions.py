"""POST /v1/completions: from the body to one GenerateRequest per prompt and the form of their answer."""

from typing import Any

from http_frontend.contract.kinds import refuse
from http_frontend.front import Call, Front
from http_frontend.openai.completion_form import CompletionForm, CompletionShape
from http_frontend.openai.constraints import grammar_of
from http_frontend.openai.parameters import (
    Fields,
    check_stream_options,
    check_whole_vocabulary,
    choices_of,
    detokenize_options,
    generate_request,
    sampling_parameters,
    wants_prompt_ids,
)
from protocol.ids import pack_ids
from protocol.requests import DetokenizeRequest, GenerateRequest, Prompt, TextPrompt, TokensPrompt

DEFAULT_MAX_TOKENS = 16

Prompts = list[str | list[int]]


async def build_completions(front: Front, call: Call) -> tuple[list[GenerateRequest], CompletionForm]:
    """One request per prompt; RequestError for whatever the fields can't mean together."""
    fields, review = call.fields, call.review
    include_usage, continuous_usage = check_stream_options(fields, review)
    prompts, single = prompts_of(fields["prompt"])
    echo = fields.get("echo", False)
    suffix = suffix_of(fields, prompts)
    max_tokens = fields.get("max_tokens", DEFAULT_MAX_TOKENS)
    scores = max_tokens == 0
    if scores and not echo:
        refuse("max_tokens", "must be at least 1 without echo")
    n, best_of = counts_of(fields)
    logprobs = logprobs_of(fields)
    check_whole_vocabulary(logprobs, "logprobs", max_tokens * best_of * len(prompts), fields, front.config)
    if echo and logprobs == -1:
        refuse("logprobs", "the whole vocabulary is not available for an echoed prompt")
    sampling = sampling_parameters(
        fields,
        front.config,
        # Scoring a prompt needs its forward pass; the one token that this draws is not part of the answer.
        max_tokens=max(1, max_tokens),
        logprobs=0 if logprobs is None and best_of > n else logprobs,
        prompt_logprobs=prompt_logprobs_of(fields, logprobs if echo else None),
        grammar=grammar_of(fields, front.config),
    )
    sequences, copies = choices_of(fields, sampling, review, best_of)
    requests = [
        generate_request(
            call,
            front.worker,
            prompt_of(fields, prompt, suffix, "prompt" if single else f"prompt[{position}]"),
            sampling,
            detokenize_options(fields),
            position,
            n=sequences,
            reasoning=front.parsers.budget_format(sampling),
        )
        for position, prompt in enumerate(prompts)
    ]
    shape = CompletionShape(
        id=f"cmpl-{call.id}",
        model=call.model,
        created=call.created,
        fingerprint=front.models.fingerprint,
        n=n,
        copies=n if copies > 1 else 1,
        sequences=sequences,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        logprobs=logprobs is not None,
        prompt_logprobs="prompt_logprobs" in fields,
        ids_as_tokens=fields.get("return_tokens_as_token_ids", False),
        returns_ids=fields.get("return_token_ids", False),
        returns_prompt_ids=wants_prompt_ids(fields),
        returns_adjustments=fields.get("return_adjustments", False),
        scores=scores,
        echoes=await echo_texts(front, call, prompts) if echo else None,
    )
    return requests, CompletionForm(shape, review)


def prompts_of(prompt: Any) -> tuple[Prompts, bool]:
    """(texts and id lists, whether it was one prompt and no batch)."""
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt], True
    return list(prompt), False


def prompt_of(fields: Fields, prompt: str | list[int], suffix: str, field: str) -> Prompt:
    if isinstance(prompt, str):
        return TextPrompt(prompt, fields.get("add_special_tokens", True), suffix, field)
    return TokensPrompt(pack_ids(prompt), field)


def suffix_of(fields: Fields, prompts: Prompts) -> str:
    """What is to follow the answer; "" for an answer that just goes on."""
    suffix: str = fields.get("suffix", "")
    if suffix:
        for name in ("echo", "truncate_prompt_tokens"):
            if fields.get(name):
                refuse(name, "can't be combined with suffix")
        if not all(isinstance(prompt, str) for prompt in prompts):
            refuse("suffix", "needs prompts that are text: the model's marks go between")
    return suffix


def counts_of(fields: Fields) -> tuple[int, int]:
    """(choices to answer, sequences to choose them from)."""
    n: int = fields.get("n", 1)
    best_of: int = fields.get("best_of", n)
    if best_of < n:
        refuse("best_of", f"must be at least n, which is {n}; got {best_of}")
    if best_of > n and fields.get("stream", False):
        refuse("best_of", "can't be streamed: the choice is made at the end")
    return n, best_of


def logprobs_of(fields: Fields) -> int | None:
    count: int | None = fields.get("logprobs")
    if count is None and "logprob_token_ids" in fields:
        refuse("logprob_token_ids", "needs logprobs")
    return count


def prompt_logprobs_of(fields: Fields, for_echo: int | None) -> int | None:
    asked: int | None = fields.get("prompt_logprobs")
    if asked is not None and fields.get("stream", False):
        refuse("prompt_logprobs", "is not available in a stream")
    return max((count for count in (asked, for_echo) if count is not None), default=None)


async def echo_texts(front: Front, call: Call, prompts: Prompts) -> tuple[str, ...]:
    """The texts that are repeated before the answers: prompts of ids are decoded first."""
    if "truncate_prompt_tokens" in call.fields:
        refuse("echo", "can't be combined with truncate_prompt_tokens")
    texts: list[str] = []
    for prompt in prompts:
        if isinstance(prompt, str):
            texts.append(prompt)
        else:
            question_id = front.questions.new_id()
            question = DetokenizeRequest(question_id, call.served_model, pack_ids(prompt))
            texts.append((await front.questions.ask(question_id, question)).text)
    return tuple(texts)
