"""The draws of a step, in parts where memory does not allow them in one."""

import logging

import numpy
import torch
from numpy.typing import NDArray

from model_runner.forward import is_out_of_memory
from model_runner.sampling.pipeline import OUT_OF_MEMORY, DrawBatch, DrawMasks, Drawn, SamplingPipeline
from model_runner.step import CausalModel

logger = logging.getLogger(__name__)


class DrawPass:
    """From hidden states to ids: logits, pipeline, draw."""

    def __init__(self, model: CausalModel, sampling: SamplingPipeline, world: int = 1) -> None:
        self._model = model
        self._sampling = sampling
        self._world = world

    def run(self, hidden: torch.Tensor, batch: DrawBatch, masks: DrawMasks | None) -> list[Drawn]:
        """All draws ([draws, hidden]) at once, or, out of memory, those of half the rows after those of the other half;
        one row whose draws alone do not fit fails. What was drawn is not learnt yet, so that any part can be drawn again.
        """
        try:
            return [self._sampling.draw(self._model.logits(hidden), batch, masks)]
        except RuntimeError as error:
            # Several ranks compute the logits together: as in the forward pass, the replica must start again.
            if self._world > 1 or not is_out_of_memory(error):
                raise
            message = str(error)
        if hidden.device.type == "cuda":
            torch.cuda.empty_cache()
        count, middle = len(batch.slots), _border(batch.slots)
        if not middle:
            logger.error("out of memory with the draws of one row alone: %s", message)
            ids = torch.full((count,), OUT_OF_MEMORY, dtype=torch.int64, device=hidden.device)
            return [Drawn(ids, numpy.empty(0, dtype=numpy.int64), None)]
        logger.warning("out of memory with %d draws in a step; drawing in two parts", count)
        parts = []
        for first, last in ((0, middle), (middle, count)):
            part_masks = None if masks is None else masks.slice(first, last)
            parts += self.run(hidden[first:last], batch.slice(first, last), part_masks)
        return parts


def _border(slots: NDArray[numpy.int64]) -> int:
    """The first draw of the row that begins closest to the middle; 0 if there is one row only."""
    begins = numpy.flatnonzero(numpy.diff(slots)) + 1
    return int(begins[numpy.abs(begins - len(slots) / 2).argmin()]) if len(begins) else 0
