"""One request from what the front end understood to what the scheduler takes: prompt, limits, reasoning."""

import time
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from protocol.errors import field_error
from protocol.ids import pack_ids, unpack_ids
from protocol.outputs import Detokenized, Rendered, Tokenized
from protocol.requests import (
    DetokenizeRequest,
    EngineRequest,
    GenerateRequest,
    Prompt,
    TextPrompt,
    TokenizeRequest,
    TokensPrompt,
)
from protocol.sampling import DetokenizeOptions
from runtime.engine_config import EngineConfig
from tokenizer_manager.chat_rendering import ChatRenderer, RenderedChat
from tokenizer_manager.control_tokens import MarkedEncoder, strings_of
from tokenizer_manager.infill import Infiller
from tokenizer_manager.reasoning_span import reasoning_span
from tokenizer_manager.tokenization import TextTokenizer
from tokenizer_manager.validation import (
    ContextRule,
    banned_sequences,
    check_sampling_ids,
    check_something_allowed,
    check_vocabulary,
    stops_kept_out,
    truncated,
    unused_prediction,
)

CHARACTERS_PER_TOKEN = 32
"""More than any text has: of a prediction no more is encoded than an answer could be."""


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt in ids. `text` is None for one that came in ids; `chat` only for a conversation."""

    ids: list[int]
    text: str | None
    param: str
    chat: RenderedChat | None = None


@dataclass(frozen=True)
class PreparedRequest:
    """The request as the scheduler takes it, and the prompt it was made from."""

    engine: EngineRequest
    prompt: EncodedPrompt


class RequestPreparer:
    """Knows nothing of links: every method may run in any thread, and raises RequestError for what is wanting."""

    def __init__(self, config: EngineConfig, tokenizer: TextTokenizer, renderer: ChatRenderer) -> None:
        self._model = config.model
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._encoder = MarkedEncoder(tokenizer)
        self._infiller = None if self._model.infill is None else Infiller(self._model.infill, tokenizer)
        self._context = ContextRule(config.model.context_length, config.args.context_overflow)

    def prepare(self, request: GenerateRequest, patient: bool = True) -> PreparedRequest:
        """The request with its prompt in ids and every parameter final; where it goes is left to the caller.

        `patient` False is for an event loop: what would take long raises NeedsThread instead."""
        check_sampling_ids(request.sampling, self._model.vocab_size)
        prompt = self._encode(request.prompt, request.arrival_s or time.time(), patient)
        ids = truncated(prompt.ids, request, self._model.context_length)
        if not ids:
            raise field_error(prompt.param, "has no token", "empty_prompt")
        if len(ids) < len(prompt.ids):
            prompt = replace(prompt, ids=ids, text=self._tokenizer.decode(ids))
        sampling, adjustments = self._context.apply(len(ids), request, prompt.param)
        if sampling.bad_words:
            banned = sampling.banned_sequences + banned_sequences(sampling.bad_words, self._tokenizer)
            sampling = msgspec.structs.replace(sampling, banned_sequences=banned)
        check_something_allowed(sampling, self._model.eos_token_ids)
        detokenize, end_ids = self._template_stops(prompt, request.detokenize)
        if isinstance(request.prompt, TextPrompt) and request.prompt.suffix and self._model.infill is not None:
            end_ids = self._model.infill.end_ids
        span = None
        if request.reasoning is not None:
            text = prompt.text if prompt.text is not None else self._tokenizer.decode(ids[-64:])
            span = reasoning_span(request.reasoning, request.prompt, text, self._tokenizer)
        from_template = prompt.chat.adjustments if prompt.chat is not None else ()
        engine = EngineRequest(
            request_id=request.request_id,
            prompt_ids=pack_ids(ids),
            sampling=sampling,
            detokenize=detokenize,
            eos_token_ids=tuple(dict.fromkeys((*self._model.eos_token_ids, *end_ids))),
            n=request.n,
            attempt=request.attempt,
            reasoning_span=span,
            namespace=request.cache_salt,
            priority=request.priority,
            fairness_key=request.fairness_key,
            arrival_s=request.arrival_s,
            deadline_s=request.deadline_s,
            queue_timeout_s=request.queue_timeout_s,
            wants_prompt_ids=request.wants_prompt_ids,
            probe=request.probe,
            suspect=request.suspect,
            prediction_ids=pack_ids(self._prediction(request)),
            resume=request.resume,
            adjustments=(
                *from_template,
                *adjustments,
                *stops_kept_out(sampling, self._model.eos_token_ids, self._tokenizer),
                *unused_prediction(request.prediction, sampling),
            ),
        )
        return PreparedRequest(engine, prompt)

    def render(self, request: GenerateRequest, patient: bool = True) -> Rendered:
        """What `prepare` would send to the model, as plain data."""
        prepared = self.prepare(request, patient)
        engine, prompt = prepared.engine, prepared.prompt
        fields = msgspec.structs.asdict(engine.sampling)  # to_builtins alone leaves out what has its default
        sampling: dict[str, Any] = {name: msgspec.to_builtins(value, str_keys=True) for name, value in fields.items()}
        text = prompt.text if prompt.text is not None else self._tokenizer.decode(prompt.ids)
        return Rendered(
            request_id=request.request_id,
            text=text,
            ids=engine.prompt_ids,
            template=prompt.chat.template if prompt.chat is not None else None,
            template_source=prompt.chat.source if prompt.chat is not None else None,
            messages=msgspec.json.encode(prompt.chat.messages) if prompt.chat is not None else None,
            sampling=sampling,
            adjustments=engine.adjustments,
            namespace=engine.namespace,
        )

    def tokenize(self, request: TokenizeRequest, now_s: float, patient: bool = True) -> Tokenized:
        prompt = self._encode(request.prompt, now_s, patient)
        return Tokenized(
            request.request_id,
            pack_ids(prompt.ids),
            self._tokenizer.token_texts(prompt.ids),
            self._model.context_length,
            prompt.chat.adjustments if prompt.chat is not None else (),
        )

    def detokenize(self, request: DetokenizeRequest) -> Detokenized:
        ids = _unpacked(request.ids, "tokens")
        check_vocabulary(ids, self._model.vocab_size, "tokens")
        return Detokenized(request.request_id, self._tokenizer.decode(ids, request.skip_special_tokens))

    def _encode(self, prompt: Prompt, now_s: float, patient: bool) -> EncodedPrompt:
        if isinstance(prompt, TokensPrompt):
            ids = _unpacked(prompt.ids, prompt.field)
            check_vocabulary(ids, self._model.vocab_size, prompt.field)
            return EncodedPrompt(ids, None, prompt.field)
        if isinstance(prompt, TextPrompt):
            if prompt.suffix:
                assert self._infiller is not None
                return EncodedPrompt(self._infiller.encode(prompt), None, prompt.field)
            ids = self._tokenizer.encode(prompt.text, prompt.add_special_tokens)
            return EncodedPrompt(ids, prompt.text, prompt.field)
        try:
            chat = self._renderer.render(prompt, now_s)
        except RecursionError as error:
            raise field_error("messages", "is nested too deeply", "too_deep") from error
        ids = self._encoder.encode(chat.text, chat.mark, chat.add_special_tokens, guarded=chat.guarded, patient=patient)
        return EncodedPrompt(ids, chat.plain_text, "messages", chat)

    def _prediction(self, request: GenerateRequest) -> list[int]:
        """Its ids as far as an answer could be them: a text is cut before it is encoded, and ids that only the tokenizer
        knows are left out."""
        longest = self._model.context_length
        text = request.prediction[: longest * CHARACTERS_PER_TOKEN]
        ids = self._tokenizer.encode(text, add_special_tokens=False) if text else []
        return [token_id for token_id in ids[:longest] if token_id < self._model.vocab_size]

    def _template_stops(
        self, prompt: EncodedPrompt, options: DetokenizeOptions
    ) -> tuple[DetokenizeOptions, tuple[int, ...]]:
        """A conversation template's own stops: ids where they are special tokens (whose text is never seen), else strings."""
        if prompt.chat is None or not prompt.chat.stop:
            return options, ()
        ids = {text: self._tokenizer.special_id(text) for text in prompt.chat.stop}
        strings = tuple(text for text, token_id in ids.items() if token_id is None and text not in options.stop)
        end_ids = tuple(token_id for token_id in ids.values() if token_id is not None)
        return msgspec.structs.replace(options, stop=options.stop + strings), end_ids


def _unpacked(data: bytes, param: str) -> list[int]:
    try:
        return unpack_ids(data)
    except ValueError as error:
        raise field_error(param, "holds token ids that are not whole") from error


def prompt_size(prompt: Prompt) -> int:
    """How many characters there are to render and tokenise: what decides whether a thread does it."""
    if isinstance(prompt, TokensPrompt):
        return len(prompt.ids) // 8
    if isinstance(prompt, TextPrompt):
        return len(prompt.text) + len(prompt.suffix)
    return sum(map(len, strings_of([prompt.messages, prompt.tools, prompt.documents, prompt.template_kwargs])))
