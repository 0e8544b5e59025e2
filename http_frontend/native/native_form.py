"""SGLang's answer: one object per sequence, its text cumulative in a stream, everything else in `meta_info`."""

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from http_frontend.contract.review import Review
from http_frontend.exchange import Batch
from http_frontend.generation import error_frame
from http_frontend.openai.logprobs import finite
from protocol.errors import ErrorInfo
from protocol.ids import unpack_ids
from protocol.outputs import Admitted, Finish, TextOutput, TokenLogprob, TopLogprob

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class NativeShape:
    ids: tuple[str, ...]
    sequences: tuple[int, ...]
    copies: tuple[int, ...]
    batched: bool
    logprob_starts: tuple[int | None, ...]
    with_text: bool
    incremental: bool
    returns_prompt_ids: bool
    returns_adjustments: bool
    began_s: float
    asked_ids: int = 0
    """How many ids `token_ids_logprob` names: their logprobs stand behind the most likely ones."""


@dataclass
class Sequence:
    """One sequence as it grows."""

    position: int
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    scored: bool = False
    last: TextOutput | None = None


class NativeForm:
    def __init__(self, shape: NativeShape, review: Review) -> None:
        self._shape = shape
        self._review = review
        self._admitted: list[Admitted] = []
        self._sequences: list[Sequence] = []
        self._first: list[int] = []
        self._prompt_logprobs: dict[int, list[TokenLogprob | None]] = {}
        self._cached: dict[int, int] = {}

    def admit(self, admitted: list[Admitted]) -> None:
        self._admitted = admitted
        for position, (sequences, copies) in enumerate(zip(self._shape.sequences, self._shape.copies, strict=True)):
            self._first.append(len(self._sequences))
            self._sequences += [Sequence(position) for _ in range(sequences * copies)]

    def opening(self) -> bytes:
        return b""

    def frames(self, batch: Batch) -> bytes:
        frames = []
        for index in self._take(batch):
            described = self._described(index)
            last = self._sequences[index].last
            if self._shape.incremental and last is not None:
                described |= {"text": last.text, "output_ids": unpack_ids(last.ids)}
            frames.append(b"data: " + _encode(described) + b"\n\n")
        return b"".join(frames)

    def closing(self) -> bytes:
        return b""

    def collect(self, batch: Batch) -> None:
        self._take(batch)

    def body(self) -> bytes:
        answers = [self._described(index) for index in range(len(self._sequences))]
        return _encode(answers if self._shape.batched else answers[0])

    def error(self, info: ErrorInfo) -> bytes:
        return error_frame(info)

    def _take(self, batch: Batch) -> list[int]:
        """Adds the outputs up and returns the sequences that grew."""
        touched: list[int] = []
        for position, output in batch:
            if output.prompt_logprobs is not None:
                self._prompt_logprobs[position] = output.prompt_logprobs
            if output.cached_tokens:
                self._cached.setdefault(position, output.cached_tokens)
            if output.adjustments:
                self._review.note(output.adjustments)
            copies = self._shape.copies[position]
            for copy in range(copies):
                index = self._first[position] + (copy if copies > 1 else output.index)
                sequence = self._sequences[index]
                sequence.text += output.text
                sequence.ids += unpack_ids(output.ids)
                sequence.scored = sequence.scored or output.logprobs is not None
                sequence.logprobs += output.logprobs or ()
                sequence.last = output
                touched.append(index)
        return touched

    def _described(self, index: int) -> dict[str, Any]:
        sequence = self._sequences[index]
        last = sequence.last
        assert last is not None
        position = sequence.position
        admitted = self._admitted[position]
        meta: dict[str, Any] = {
            "id": self._shape.ids[position],
            "finish_reason": _finish(last.finish, last.completion_tokens),
            "prompt_tokens": admitted.prompt_tokens,
            "completion_tokens": last.completion_tokens,
            "cached_tokens": self._cached.get(position, 0),
            "reasoning_tokens": last.reasoning_tokens,
            "num_retractions": last.retractions,
            "dp_rank": admitted.replica,
        }
        if last.finish is not None:
            meta["e2e_latency"] = time.time() - self._shape.began_s
        if sequence.scored:
            meta |= self._scores(sequence)
        described: dict[str, Any] = {"text": sequence.text, "output_ids": sequence.ids, "meta_info": meta}
        if self._shape.batched:
            described["index"] = index
        if self._shape.returns_prompt_ids and admitted.prompt_ids is not None:
            described["prompt_token_ids"] = unpack_ids(admitted.prompt_ids)
        if self._shape.returns_adjustments and last.finish is not None:
            described["adjustments"] = self._review.listed()
        return described

    def _scores(self, sequence: Sequence) -> dict[str, Any]:
        start = self._shape.logprob_starts[sequence.position]
        scores: dict[str, Any] = {
            "output_token_logprobs": [self._entry(entry) for entry in sequence.logprobs],
            "output_top_logprobs": [self._tops(entry, self._shape.asked_ids) for entry in sequence.logprobs],
        }
        if self._shape.asked_ids:
            scores["output_token_ids_logprobs"] = [
                self._candidates(entry.top[-self._shape.asked_ids :]) for entry in sequence.logprobs
            ]
        prompt = self._prompt_logprobs.get(sequence.position)
        if prompt is not None and start is not None:
            scores["input_token_logprobs"] = [entry and self._entry(entry) for entry in prompt[start:]]
            scores["input_top_logprobs"] = [entry and self._tops(entry) for entry in prompt[start:]]
        return scores

    def _entry(self, entry: TokenLogprob) -> tuple[float, int, str | None]:
        return finite(entry.logprob), entry.id, entry.token if self._shape.with_text else None

    def _tops(self, entry: TokenLogprob, others: int = 0) -> list[tuple[float, int, str | None]] | None:
        return self._candidates(entry.top[: len(entry.top) - others]) or None

    def _candidates(self, found: list[TopLogprob]) -> list[tuple[float, int, str | None]]:
        return [(finite(top.logprob), top.id, top.token if self._shape.with_text else None) for top in found]


def _finish(finish: Finish | None, completion_tokens: int) -> dict[str, Any] | None:
    if finish is None:
        return None
    if finish.reason == "length":
        return {"type": "length", "length": completion_tokens}
    if finish.reason == "abort":
        error = finish.error
        return {
            "type": "abort",
            "message": error.message if error else "aborted",
            "status_code": error.status if error else None,
        }
    return {"type": "stop", "matched": finish.matched}
