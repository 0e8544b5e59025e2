"""Requests on their way in: HTTP front end -> tokenizer manager -> scheduler."""

from typing import Any, Literal

import msgspec

from protocol.sampling import DetokenizeOptions, ReasoningFormat, ReasoningSpan, SamplingParameters


class Adjustment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One place where the server did something else than the field said: what it did, and why."""

    field: str
    action: Literal["clamped", "ignored", "changed", "duplicated", "extension"]
    reason: str
    value: Any = None


class TextPrompt(msgspec.Struct, frozen=True, omit_defaults=True, tag="text"):
    """`suffix` is what follows the answer, which then fills the middle; only for models that have an `InfillFormat`.
    `field` is where it stood in the client's body, for errors."""

    text: str
    add_special_tokens: bool = True
    suffix: str = ""
    field: str = "prompt"


class TokensPrompt(msgspec.Struct, frozen=True, omit_defaults=True, tag="tokens"):
    ids: bytes
    """int32 bytes, see protocol.ids."""
    field: str = "prompt"
    """Where they stood in the client's body, for errors."""


class ChatPrompt(msgspec.Struct, frozen=True, omit_defaults=True, tag="chat"):
    """A conversation, normalised by the front end.

    A message is a dict with `role` and, where given, `content` (str, None or a list of `{"type": "text", "text"}`
    parts), `name`, `tool_calls` (`[{"id", "type": "function", "function": {"name", "arguments": str}}]`),
    `tool_call_id`, `reasoning_content`. `tools` are OpenAI tool objects (`{"type": "function", "function": {...}}`).
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    template: str | None = None
    template_kwargs: dict[str, Any] = {}


Prompt = TextPrompt | TokensPrompt | ChatPrompt


class ChoiceProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the front end has already delivered of one choice, for a request that is submitted again.

    A finished choice is not computed again. An unfinished one continues after `ids` (int32 bytes).
    """

    index: int
    ids: bytes = b""
    finished: bool = False


class GenerateRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="generate"):
    """One prompt and what is wanted of it. `request_id` is `<http worker index>-<client's id>~<unique>`: it names the
    owner, and is never used again, for what is left of a request with the same id must not be taken for the new one's.

    `attempt` starts at 0 and grows with every resubmission; outputs of an older attempt are dropped. `probe` requests
    (health) jump every queue and limit. `arrival_s` and `deadline_s` are `time.time()` values.
    `truncate_prompt_tokens` keeps the last k prompt tokens; -1 keeps as many as leave room for `max_tokens`.
    `wants_prompt_ids` asks for the prompt's ids in `Admitted`.
    """

    request_id: str
    model: str
    prompt: Prompt
    sampling: SamplingParameters
    detokenize: DetokenizeOptions = DetokenizeOptions()
    n: int = 1
    attempt: int = 0
    reasoning: ReasoningFormat | None = None
    priority: int = 0
    cache_salt: str = ""
    fairness_key: str = ""
    arrival_s: float = 0.0
    deadline_s: float | None = None
    queue_timeout_s: float | None = None
    truncate_prompt_tokens: int | None = None
    max_tokens_field: str = "max_tokens"
    wants_prompt_ids: bool = False
    probe: bool = False
    suspect: bool = False
    prediction: str = ""
    """What the answer is expected to be: guesses come from it, and change nothing."""
    replica: int | None = None
    resume: tuple[ChoiceProgress, ...] = ()


class RenderRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="render"):
    """Asks for what `request` would send to the model; nothing is generated. Answered by `Rendered` or `Refused`."""

    request: GenerateRequest


class TokenizeRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="tokenize"):
    request_id: str
    model: str
    prompt: Prompt


class DetokenizeRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="detokenize"):
    request_id: str
    model: str
    ids: bytes
    skip_special_tokens: bool = False


class AbortRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="abort"):
    """Ends a request wherever it is. `request_id` is exact, or "" with `client_id` (all requests that a client gave this
    id to), `all_of_worker` or `abort_all`; one that names nothing ends nothing.

    `attempt` bounds it: attempts up to that number are ended, a later one is left alone.
    """

    request_id: str
    attempt: int = 2**31
    abort_all: bool = False
    all_of_worker: int | None = None
    client_id: str = ""


class EngineRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="engine"):
    """A request that the tokenizer manager has admitted: ids, final parameters, and where its outputs go.

    `namespace` separates prefix caches (`cache_salt`). `eos_token_ids` end a choice unless `ignore_eos`.
    `max_tokens` of the sampling parameters is a number here.
    """

    request_id: str
    prompt_ids: bytes
    sampling: SamplingParameters
    detokenize: DetokenizeOptions = DetokenizeOptions()
    eos_token_ids: tuple[int, ...] = ()
    n: int = 1
    attempt: int = 0
    reasoning_span: ReasoningSpan | None = None
    namespace: str = ""
    priority: int = 0
    fairness_key: str = ""
    arrival_s: float = 0.0
    deadline_s: float | None = None
    queue_timeout_s: float | None = None
    detokenizer: int = 0
    wants_prompt_ids: bool = False
    probe: bool = False
    suspect: bool = False
    prediction_ids: bytes = b""
    resume: tuple[ChoiceProgress, ...] = ()
    adjustments: tuple[Adjustment, ...] = ()


class PeekCache(msgspec.Struct, frozen=True, omit_defaults=True, tag="peek"):
    """How much of a prompt the prefix cache holds (for /render); answered by a `ControlReply` with `cached_tokens`."""

    correlation_id: str
    detokenizer: int
    prompt_ids: bytes
    namespace: str = ""
