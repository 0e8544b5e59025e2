"""Answers on their way out: scheduler -> detokenizer -> HTTP front end, and what the tokenizer manager answers itself."""

from typing import Any, Literal

import msgspec

from protocol.errors import ErrorInfo
from protocol.requests import Adjustment, ChoiceProgress
from protocol.sampling import DetokenizeOptions, ReasoningSpan

FinishReason = Literal["stop", "length", "abort", "error"]


class Finish(msgspec.Struct, frozen=True, array_like=True):
    """The end of one choice. `matched` is the stop string, regex or token id that ended it (None: end-of-sequence or length)."""

    reason: FinishReason
    matched: str | int | None = None
    error: ErrorInfo | None = None


class IdLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs at one position, in ids: the token itself and the most likely ones (int32 / float32 bytes, best first)."""

    id: int
    logprob: float
    rank: int = 0
    top_ids: bytes = b""
    top_logprobs: bytes = b""


class Admitted(msgspec.Struct, frozen=True, omit_defaults=True, tag="admitted"):
    """The scheduler has taken the request. Goes down the ring before its tokens; the detokenizer opens its state.

    `prompt_tail` is the last few prompt ids (int32 bytes), enough to decode across the border; `prompt_ids` only if asked.
    """

    request_id: str
    attempt: int
    prompt_tokens: int
    n: int = 1
    prompt_tail: bytes = b""
    prompt_ids: bytes | None = None
    detokenize: DetokenizeOptions = DetokenizeOptions()
    eos_token_ids: tuple[int, ...] = ()
    reasoning_span: ReasoningSpan | None = None
    adjustments: tuple[Adjustment, ...] = ()
    resume: tuple[ChoiceProgress, ...] = ()
    replica: int = 0


class SequenceOutput(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one choice in one step (`ids`: int32 bytes), or its end, or both.

    `prompt_logprobs` comes once, with the first output: one entry per prompt token, None for the first.
    `adjustments` are what was found while decoding (forced end of reasoning and the like), with the finish.
    `prediction` counts the ids of the request's prediction that were computed: (accepted, rejected) so far.
    """

    request_id: str
    attempt: int
    index: int
    ids: bytes
    finish: Finish | None = None
    logprobs: list[IdLogprobs] | None = None
    prompt_logprobs: list[IdLogprobs | None] | None = None
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    retractions: int = 0
    adjustments: tuple[Adjustment, ...] = ()
    prediction: tuple[int, int] | None = None


class StepOutput(msgspec.Struct, frozen=True, tag="step"):
    """Everything that one step produced for one detokenizer: one message per step per link."""

    step: int
    outputs: list[SequenceOutput]


class StopFound(msgspec.Struct, frozen=True, tag="stop_found"):
    """Detokenizer -> scheduler: the choice has ended at a stop string, after `output_tokens` tokens. Late ones are no-ops."""

    request_id: str
    attempt: int
    index: int
    output_tokens: int
    error: bool = False


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One candidate token with its text. `bytes_` are its exact bytes, also where `token` is not valid UTF-8 alone."""

    token: str
    id: int
    logprob: float
    bytes_: bytes


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    token: str
    id: int
    logprob: float
    bytes_: bytes
    rank: int = 0
    top: list[TopLogprob] = []


class TextOutput(msgspec.Struct, frozen=True, array_like=True):
    """New text of one choice with exactly the ids and logprobs it came from.

    `completion_tokens` is the total so far; after a stop match `ids` ends with the token that completed it.
    Each choice has exactly one output with `finish`, its last.
    """

    request_id: str
    attempt: int
    index: int
    text: str
    ids: bytes
    completion_tokens: int
    finish: Finish | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    retractions: int = 0
    adjustments: tuple[Adjustment, ...] = ()
    prediction: tuple[int, int] | None = None


class TextBatch(msgspec.Struct, frozen=True, tag="text"):
    """All outputs of one step that belong to one HTTP worker."""

    outputs: list[TextOutput]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The request was turned down before anything of it was computed. From the tokenizer manager directly, or from the
    scheduler through the detokenizer. The last message of its attempt."""

    request_id: str
    attempt: int
    error: ErrorInfo


class Rendered(msgspec.Struct, frozen=True, omit_defaults=True, tag="rendered"):
    """Answer to `RenderRequest`: what would reach the model. Plain data for the body of the render endpoints.

    `messages` are JSON: templates are given a call's arguments parsed, and their numbers may have more than 64 bits."""

    request_id: str
    text: str
    ids: bytes
    template: str | None
    template_source: str | None
    messages: bytes | None
    sampling: dict[str, Any]
    adjustments: tuple[Adjustment, ...] = ()
    namespace: str = ""


class Tokenized(msgspec.Struct, frozen=True, tag="tokenized"):
    request_id: str
    ids: bytes
    tokens: list[str]
    max_model_len: int
    adjustments: tuple[Adjustment, ...] = ()


class Detokenized(msgspec.Struct, frozen=True, tag="detokenized"):
    request_id: str
    text: str
