"""Logprobs of prompt tokens, computed in slices: all logits of a long prompt would take gigabytes."""

import numpy
import torch
from numpy.typing import NDArray

from model_runner.device_arrays import to_device
from model_runner.sampling.logprobs import LogprobQuestion, answer
from model_runner.step import CausalModel
from protocol.outputs import IdLogprobs
from protocol.plan import RowStart

SLICE_ELEMENTS = 1 << 23
"""Logits computed at once: 32 MiB of float32."""


class PromptLogprobs:
    """Remembers the prompts of slots whose requests ask, and answers about the positions that a step feeds."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._prompts: dict[int, tuple[LogprobQuestion, NDArray[numpy.int64]]] = {}

    def start(self, start: RowStart) -> None:
        self._prompts.pop(start.slot, None)
        sampling = start.sampling
        if sampling.prompt_logprobs is not None:
            question = LogprobQuestion(sampling.prompt_logprobs, sampling.logprob_token_ids)
            self._prompts[start.slot] = (question, numpy.frombuffer(start.prompt_ids, "<i4").astype(numpy.int64))

    def release(self, slot: int) -> None:
        self._prompts.pop(slot, None)

    def answer(self, slot: int, context: int, hidden: torch.Tensor) -> list[IdLogprobs]:
        """One entry per fed position (hidden [new tokens, hidden], the first at `context`) that a prompt token follows."""
        question, prompt = self._prompts[slot]
        following = prompt[context + 1 : context + 1 + hidden.shape[0]]
        slice_rows = max(1, SLICE_ELEMENTS // self._model.vocab_size)
        entries: list[IdLogprobs] = []
        for first in range(0, len(following), slice_rows):
            chosen = to_device(following[first : first + slice_rows], hidden.device)
            logits = self._model.logits(hidden[first : first + len(chosen)])
            answered = answer(logits, chosen, [question] * len(chosen))
            entries += answered.entries(answered.to_host())
        return entries
