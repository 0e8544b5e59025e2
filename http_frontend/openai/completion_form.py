"""How completions are written: chunks, or the one body that they add up to."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from http_frontend.contract.review import Review
from http_frontend.exchange import Batch
from http_frontend.generation import by_choice, error_frame
from http_frontend.openai.chat_choice import refuse_abort
from http_frontend.openai.logprobs import FirstToken, Place, completion_logprobs, prompt_logprobs
from http_frontend.usage import Tally
from protocol.errors import ErrorInfo
from protocol.ids import unpack_ids
from protocol.outputs import Admitted, Finish, TextOutput, TokenLogprob

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class CompletionShape:
    """What the request asked of the answer's form. `echoes` are the prompts' texts, if they are to be repeated;
    `scores`: nothing but the prompt is wanted."""

    id: str
    model: str
    created: int
    fingerprint: str
    n: int
    copies: int
    sequences: int
    include_usage: bool
    continuous_usage: bool
    logprobs: bool
    prompt_logprobs: bool
    ids_as_tokens: bool
    returns_ids: bool
    returns_prompt_ids: bool
    returns_adjustments: bool
    scores: bool
    echoes: tuple[str, ...] | None


@dataclass
class Choice:
    """One sequence as it grows; `place` is that of the next token in the answer's text."""

    place: Place = field(default_factory=Place)
    finish: Finish | None = None
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)

    @property
    def mean_logprob(self) -> float:
        values = [entry.logprob for entry in self.logprobs if entry is not None]
        return sum(values) / len(values) if values else float("-inf")


class CompletionForm:
    def __init__(self, shape: CompletionShape, review: Review) -> None:
        self._shape = shape
        self._review = review
        self._tally = Tally(shape.copies)
        self._admitted: list[Admitted] = []
        self._choices: list[Choice] = []
        self._prompt_logprobs: dict[int, list[TokenLogprob | None]] = {}
        self._echoed: set[int] = set()
        self._head = b"data: " + _encode(self._envelope())[:-1] + b',"choices":['
        self._no_usage = b'],"usage":null}\n\n' if shape.include_usage else b"]}\n\n"
        self._plain = not shape.returns_ids and not shape.continuous_usage

    @property
    def _per_prompt(self) -> int:
        return self._shape.sequences * self._shape.copies

    def admit(self, admitted: list[Admitted]) -> None:
        self._admitted = admitted
        self._tally.admit(admitted)
        self._choices = [Choice() for _ in range(len(admitted) * self._per_prompt)]

    # The stream

    def opening(self) -> bytes:
        return b""

    def frames(self, batch: Batch) -> bytes:
        self._count(batch)
        frames: list[bytes] = []
        for index, position, output in by_choice(batch, self._shape.sequences, self._shape.copies):
            if self._shape.echoes is not None and position not in self._echoed:
                self._echoed.add(position)
                frames += [self._echo(choice, position) for choice in self._of(position)]
            choice = self._choices[index]
            self._end(choice, output)
            if not self._shape.scores and (output.text or output.ids):
                frames.append(self._chunk(index, output.text, self._scored(choice, output.logprobs), output.ids))
            if choice.finish is not None:
                frames.append(self._chunk(index, "", None, b"", choice.finish))
        return b"".join(frames)

    def closing(self) -> bytes:
        shape = self._shape
        if not shape.include_usage and not shape.returns_adjustments:
            return b""
        last = self._envelope() | {"choices": []}
        if shape.include_usage:
            last["usage"] = self._usage()
        if shape.returns_adjustments:
            last["adjustments"] = self._review.listed()
        return b"data: " + _encode(last) + b"\n\n"

    def error(self, info: ErrorInfo) -> bytes:
        return error_frame(info)

    def _echo(self, index: int, position: int) -> bytes:
        assert self._shape.echoes is not None
        text, choice = self._shape.echoes[position], self._choices[index]
        choice.place = Place(len(text))
        return self._chunk(index, text, self._scored_prompt(position), b"")

    def _chunk(self, index: int, text: str, logprobs: Any, ids: bytes, finish: Finish | None = None) -> bytes:
        if self._plain and logprobs is None and finish is None:
            middle = b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":null}' % (index, _encode(text))
            return self._head + middle + self._no_usage
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": None if finish is None else finish.reason,
        }
        if finish is not None:
            choice |= {"stop_reason": finish.matched, "matched_stop": finish.matched}
        if self._shape.returns_ids:
            choice["token_ids"] = unpack_ids(ids)
        tail = b'],"usage":' + _encode(self._usage()) + b"}\n\n" if self._shape.continuous_usage else self._no_usage
        return self._head + _encode(choice) + tail

    # The whole

    def collect(self, batch: Batch) -> None:
        self._count(batch)
        for index, _, output in by_choice(batch, self._shape.sequences, self._shape.copies):
            choice = self._choices[index]
            self._end(choice, output)
            choice.texts.append(output.text)
            choice.ids.append(output.ids)
            choice.logprobs += output.logprobs or ()

    def body(self) -> bytes:
        shape = self._shape
        choices: list[dict[str, Any]] = []
        for position in range(len(self._admitted)):
            chosen = self._best([self._choices[index] for index in self._of(position)])
            choices += [self._whole(choice, position, len(choices) + place) for place, choice in enumerate(chosen)]
        answer = self._envelope() | {"choices": choices, "usage": self._usage()}
        if shape.returns_adjustments:
            answer["adjustments"] = self._review.listed()
        return _encode(answer)

    def _best(self, choices: list[Choice]) -> list[Choice]:
        """The n sequences with the highest mean logprob, if there are more than n."""
        n = self._shape.n
        return choices if len(choices) == n else sorted(choices, key=lambda choice: -choice.mean_logprob)[:n]

    def _whole(self, choice: Choice, position: int, index: int) -> dict[str, Any]:
        shape = self._shape
        finish = choice.finish
        assert finish is not None
        text = "" if shape.scores else "".join(choice.texts)
        logprobs = None
        if shape.echoes is not None:
            choice.place = Place(len(shape.echoes[position]))
            text = shape.echoes[position] + text
            logprobs = self._scored_prompt(position)
        if shape.logprobs and not shape.scores:
            own = self._scored(choice, [entry for entry in choice.logprobs if entry is not None])
            logprobs = own if logprobs is None else {name: values + own[name] for name, values in logprobs.items()}
        whole: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish.reason,
            "stop_reason": finish.matched,
            "matched_stop": finish.matched,
        }
        if shape.prompt_logprobs and position in self._prompt_logprobs:
            whole["prompt_logprobs"] = prompt_logprobs(self._prompt_logprobs[position])
        if shape.returns_ids:
            whole["token_ids"] = unpack_ids(b"".join(choice.ids))
        prompt_ids = self._admitted[position].prompt_ids
        if shape.returns_prompt_ids and prompt_ids is not None:
            whole["prompt_token_ids"] = unpack_ids(prompt_ids)
        return whole

    # Both

    def _of(self, position: int) -> range:
        return range(position * self._per_prompt, (position + 1) * self._per_prompt)

    def _end(self, choice: Choice, output: TextOutput) -> None:
        if output.finish is not None:
            refuse_abort(output.finish)
            # The one token that scoring draws is not part of the answer, nor is what it may have ended.
            choice.finish = Finish("length") if self._shape.scores else output.finish

    def _count(self, batch: Batch) -> None:
        for position, output in batch:
            self._tally.count(position, output)
            if output.prompt_logprobs is not None:
                self._prompt_logprobs[position] = output.prompt_logprobs
            if output.adjustments:
                self._review.note(output.adjustments)

    def _scored(self, choice: Choice, entries: list[TokenLogprob] | None) -> Any:
        if not self._shape.logprobs or entries is None:
            return None
        return completion_logprobs(entries, choice.place, self._shape.ids_as_tokens)

    def _scored_prompt(self, position: int) -> Any:
        """Logprobs of the echoed prompt. Its first token has none; its text is what the others leave of the prompt."""
        entries = self._prompt_logprobs.get(position)
        if not self._shape.logprobs or entries is None or self._shape.echoes is None:
            return None
        text = self._shape.echoes[position].encode("utf-8", "replace")
        rest = b"".join(entry.bytes_ for entry in entries if entry is not None)
        first = text[: len(text) - len(rest)] if text.endswith(rest) else b""
        name = first.decode("utf-8", "replace")
        ids = self._admitted[position].prompt_ids
        if self._shape.ids_as_tokens and ids is not None:
            name = f"token_id:{unpack_ids(ids)[0]}"
        return completion_logprobs(entries, Place(), self._shape.ids_as_tokens, FirstToken(name, first))

    def _usage(self) -> dict[str, Any]:
        usage = self._tally.usage()
        if self._shape.scores:
            usage |= {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
        return usage

    def _envelope(self) -> dict[str, Any]:
        shape = self._shape
        return {
            "id": shape.id,
            "object": "text_completion",
            "created": shape.created,
            "model": shape.model,
            "system_fingerprint": shape.fingerprint,
        }
