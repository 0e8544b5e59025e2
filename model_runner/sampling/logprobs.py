"""The model's own logprobs: of one chosen id per row, of the most likely ids, and of ids that were asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch

from model_runner.device_arrays import HostCopy, to_device
from protocol.ids import pack_ids
from protocol.outputs import IdLogprobs
from protocol.sampling import SamplingParameters


@dataclass(frozen=True)
class LogprobQuestion:
    """What one row wants beside the chosen id: the `top` most likely (-1: all), then `ids` in their order."""

    top: int
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class LogprobAnswer:
    """Answers to the questions of some rows, on the device until `to_host` and `entries`."""

    questions: Sequence[LogprobQuestion]
    chosen: torch.Tensor  # [rows] int64
    chosen_logprobs: torch.Tensor  # [rows] float32
    ranks: torch.Tensor  # [rows] int64, 1 is the most likely
    top_ids: torch.Tensor  # [rows, largest top] int32
    top_logprobs: torch.Tensor  # [rows, largest top] float32
    asked_logprobs: tuple[torch.Tensor, ...]  # per row [its ids] float32

    def to_host(self) -> HostCopy:
        """Starts the copy that `entries` reads."""
        tensors = (self.chosen, self.chosen_logprobs, self.ranks, self.top_ids, self.top_logprobs)
        return HostCopy(*tensors, *self.asked_logprobs)

    def entries(self, copy: HostCopy) -> list[IdLogprobs]:
        """One entry per row."""
        chosen_ids, chosen_logprobs, ranks, *others = copy.wait()
        top_ids, top_logprobs, asked_logprobs = others[0].numpy(), others[1].numpy(), others[2:]
        columns = zip(
            self.questions,
            chosen_ids.tolist(),
            chosen_logprobs.tolist(),
            ranks.tolist(),
            asked_logprobs,
            strict=True,
        )
        answers = []
        for row, (question, chosen, logprob, rank, asked) in enumerate(columns):
            count = top_ids.shape[1] if question.top < 0 else question.top
            ids, logprobs = top_ids[row, :count].tobytes(), top_logprobs[row, :count].tobytes()
            if question.ids:
                ids += pack_ids(question.ids)
                logprobs += asked.numpy().tobytes()
            answers.append(IdLogprobs(chosen, logprob, rank, ids, logprobs))
        return answers


def output_question(sampling: SamplingParameters) -> LogprobQuestion | None:
    """What the request asks about each drawn token, None for nothing."""
    if sampling.logprobs is None and not sampling.logprob_token_ids:
        return None
    return LogprobQuestion(sampling.logprobs or 0, sampling.logprob_token_ids)


def answer(logits: torch.Tensor, chosen: torch.Tensor, questions: Sequence[LogprobQuestion]) -> LogprobAnswer:
    """Of raw logits [rows, vocab] and one chosen id per row (negative: none was drawn; its entry says nothing)."""
    normaliser = torch.logsumexp(logits, dim=-1)
    chosen_logits = logits.gather(1, chosen.clamp(min=0)[:, None])
    largest = max(logits.shape[1] if question.top < 0 else question.top for question in questions)
    top_logits, top_ids = logits.topk(min(largest, logits.shape[1]), dim=-1)
    asked = [
        logits[row, to_device(numpy.array(question.ids, dtype=numpy.int64), logits.device)] - normaliser[row]
        for row, question in enumerate(questions)
    ]
    return LogprobAnswer(
        questions=questions,
        chosen=chosen,
        chosen_logprobs=chosen_logits[:, 0] - normaliser,
        ranks=(logits > chosen_logits).sum(dim=-1) + 1,
        top_ids=top_ids.int(),
        top_logprobs=top_logits - normaliser[:, None],
        asked_logprobs=tuple(asked),
    )
