"""How one request draws its tokens, and when it stops."""

from typing import Literal

import msgspec

GrammarKind = Literal["json_object", "json_schema", "regex", "ebnf", "choice", "structural_tag"]
JsonWhitespace = Literal["any", "compact", "bounded"]


class GrammarSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A constraint on the text of an answer.

    `text` is, by kind: nothing (json_object), a JSON schema, a regular expression, a GBNF/EBNF grammar, a JSON list of
    strings (choice), or a structural tag as xgrammar reads it. `field` is the request field it came from, for errors.
    """

    kind: GrammarKind
    text: str = ""
    field: str = "response_format"
    whitespace: JsonWhitespace = "compact"
    strict: bool = True


class SamplingParameters(msgspec.Struct, frozen=True, omit_defaults=True):
    """The draw of one request; every field is final once the tokenizer manager has passed it on.

    `temperature` 0 is greedy whatever else is set. `top_k` 0 and `top_p` 1 are off. `seed` is always set at the edge,
    choice i of a request draws with `seed + i`, and a draw depends on (seed, position of the drawn token) alone.
    `max_tokens` None means up to the context length (the tokenizer manager replaces it by the number).
    `logprobs` None is off, 0 the drawn token alone, k the k most likely beside it, -1 the whole vocabulary; values are
    the model's own, before penalties, bias, masks and temperature. `prompt_logprobs` likewise for prompt tokens.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    min_tokens: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    grammar: GrammarSpec | None = None
    thinking_budget: int | None = None

    @property
    def draws_depend_on_each_other(self) -> bool:
        """Whether a draw depends on which ids were drawn before it, beside the model's reading of them."""
        penalised = self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0
        return bool(penalised or self.banned_sequences or self.bad_words)


class DetokenizeOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How ids become the text that the client sees.

    Special tokens are dropped when `skip_special_tokens`, save those named in `visible_special_tokens` (markers that a
    parser must see). Text is delivered in whole tokens: the text of an output is always the decoding of its ids, except
    that the last output of a choice is cut at a stop match. An output leaves after `stream_interval` new tokens. Stop
    strings and regexes are looked for in the text after the first `min_tokens` tokens.
    """

    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    include_stop: bool = False
    stop_in_reasoning: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    visible_special_tokens: tuple[str, ...] = ()
    stream_interval: int = 1
    min_tokens: int = 0


class ReasoningFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The textual markers of a model's reasoning, as the front end knows them from its parser."""

    open: str
    close: str
    always: bool = False
    """True: output begins inside reasoning even if the prompt shows no opening marker (models that always think)."""
    other_opens: tuple[str, ...] = ()
    other_closes: tuple[str, ...] = ()
    tool_opens: tuple[str, ...] = ()
    """Markers of tool calls (or of the answer's own frame) that end reasoning which is not closed."""


class ReasoningSpan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where reasoning begins and ends in ids; set by the tokenizer manager after rendering, read by everyone."""

    open_ids: tuple[int, ...]
    close_ids: tuple[int, ...]
    prompt_opened: bool
    open_texts: tuple[str, ...] = ()
    close_texts: tuple[str, ...] = ()
    tool_texts: tuple[str, ...] = ()
    """All markers as text, blanks around it left out: what decides where the tokens' texts are known. `tool_texts` end
    reasoning, too, and are not to be drawn inside it where a grammar waits for the end."""
