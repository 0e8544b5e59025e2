"""Checks that need the model: its vocabulary and its context length."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from protocol.errors import field_error
from protocol.requests import Adjustment, GenerateRequest
from protocol.sampling import SamplingParameters
from tokenizer_manager.tokenization import TextTokenizer


def check_vocabulary(ids: Iterable[int], vocab_size: int, param: str) -> None:
    """RequestError naming the first id that the model does not have."""
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            message = f"token id {token_id} is out of vocabulary, this model's ids are 0 to {vocab_size - 1}"
            raise field_error(param, message, "token_out_of_vocabulary")


def check_sampling_ids(sampling: SamplingParameters, vocab_size: int) -> None:
    check_vocabulary(sampling.logit_bias or (), vocab_size, "logit_bias")
    check_vocabulary(sampling.stop_token_ids, vocab_size, "stop_token_ids")
    check_vocabulary(sampling.logprob_token_ids, vocab_size, "logprob_token_ids")
    if sampling.allowed_token_ids is not None:
        if not sampling.allowed_token_ids:
            raise field_error("allowed_token_ids", "is empty, so that no token could be drawn")
        check_vocabulary(sampling.allowed_token_ids, vocab_size, "allowed_token_ids")


def banned_sequences(bad_words: Iterable[str], tokenizer: TextTokenizer) -> tuple[tuple[int, ...], ...]:
    """Each bad word as the ids it has at the start of a text and behind a blank."""
    sequences: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(bad_words):
        bare = word.lstrip()
        if not bare:
            raise field_error(f"bad_words[{index}]", "is empty")
        for text in (bare, " " + bare):
            sequences[tuple(tokenizer.encode(text))] = None
    return tuple(sequence for sequence in sequences if sequence)


def check_something_allowed(sampling: SamplingParameters, eos_token_ids: Iterable[int]) -> None:
    """RequestError where `allowed_token_ids` holds nothing but what other fields take away again, now or later.

    Not for a request with a grammar, which overrules them.
    """
    if sampling.allowed_token_ids is None or sampling.grammar is not None:
        return
    banned = {sequence[-1] for sequence in sampling.banned_sequences}
    if sampling.min_tokens:
        banned.update(sampling.stop_token_ids, () if sampling.ignore_eos else eos_token_ids)
    if banned.issuperset(sampling.allowed_token_ids):
        message = "holds only tokens that bad_words or min_tokens exclude, so that no token could be drawn"
        raise field_error("allowed_token_ids", message)


def stops_kept_out(
    sampling: SamplingParameters, eos_token_ids: Iterable[int], tokenizer: TextTokenizer
) -> tuple[Adjustment, ...]:
    """What is told of stop ids that are text: a grammar takes them for ends, so they can't stand inside the answer.

    Free text with bound parts may end anywhere, and so at each of them.
    """
    if sampling.grammar is None or sampling.grammar.kind == "structural_tag":
        return ()
    ends = {*eos_token_ids, *(tokenizer.added[name] for name in tokenizer.special)}
    if ends.issuperset(sampling.stop_token_ids):
        return ()
    reason = "with a grammar they end the answer where it is complete, and are not drawn before"
    return (Adjustment("stop_token_ids", "changed", reason),)


def unused_prediction(prediction: str, sampling: SamplingParameters) -> tuple[Adjustment, ...]:
    """What is told of a prediction whose choices are drawn one token at a time."""
    if not prediction:
        return ()
    if sampling.draws_depend_on_each_other:
        reason = "with penalties or banned words each token depends on those before it: the answer comes one by one"
    elif sampling.grammar is not None or sampling.thinking_budget is not None:
        reason = "what is bound by a grammar or a thinking budget comes one by one"
    else:
        return ()
    return (Adjustment("prediction", "ignored", reason),)


def truncated(ids: list[int], request: GenerateRequest, context_length: int) -> list[int]:
    """The prompt's last tokens as `truncate_prompt_tokens` wants them."""
    keep = request.truncate_prompt_tokens
    if keep is None:
        return ids
    if keep == -1:
        wanted = request.sampling.max_tokens
        keep = max(1, context_length - (1 if wanted is None else wanted))
    if keep < 1:
        raise field_error("truncate_prompt_tokens", "must be -1 or a positive number")
    return ids[-keep:]


@dataclass(frozen=True)
class ContextRule:
    """How long prompt and answer may be together, and what becomes of a request for more."""

    context_length: int
    overflow: Literal["reject", "clamp"]

    def apply(
        self, prompt_tokens: int, request: GenerateRequest, prompt_param: str
    ) -> tuple[SamplingParameters, tuple[Adjustment, ...]]:
        """Sampling parameters with `max_tokens` a number that fits; RequestError where the prompt or the sum does not."""
        sampling = request.sampling
        room = self.context_length - prompt_tokens
        wanted = sampling.max_tokens
        field = request.max_tokens_field
        if room < 0 or (room == 0 and wanted != 0):
            raise field_error(
                prompt_param,
                f"the prompt has {prompt_tokens} tokens, which leaves no room for an answer in this model's context "
                f"length of {self.context_length} tokens"
                + (f" (requested in {field}: {wanted} tokens)" if wanted is not None else ""),
                "context_length_exceeded",
            )
        adjustments: tuple[Adjustment, ...] = ()
        granted = room if wanted is None else min(wanted, room)
        least = sampling.min_tokens
        if wanted is not None and wanted > room:
            if self.overflow == "reject":
                raise field_error(
                    field,
                    f"the prompt has {prompt_tokens} tokens and {field} asks for {wanted} more: {prompt_tokens + wanted} "
                    f"tokens, but this model's context length is {self.context_length}; "
                    f"ask for at most {room} tokens in {field}, or shorten the prompt",
                    "context_length_exceeded",
                )
            reason = f"{prompt_tokens} prompt tokens leave {room} of the context length of {self.context_length}"
            adjustments = (Adjustment(field, "clamped", reason, value=granted),)
            if granted < least <= wanted:
                adjustments += (Adjustment("min_tokens", "clamped", reason, value=granted),)
                least = granted
        if least > granted:
            raise field_error("min_tokens", f"{least} is greater than the {granted} tokens that the answer may have")
        return msgspec.structs.replace(sampling, max_tokens=granted, min_tokens=least), adjustments
