"""The ids that can win a draw, found on the CPU engine's threads."""

import ctypes

import numpy
import torch

from model_runner.kernels.decoder import CpuDecoder
from model_runner.kernels.library import DrawsStruct
from model_runner.sampling.draw import DrawParameters, Search, lowest_temperature
from model_runner.step import CausalModel

MOST_CONTENDERS = 64


class ContenderSearch:
    """A `Search` by the library that an engine belongs to."""

    def __init__(self, library: ctypes.CDLL, engine: int) -> None:
        self._library = library
        self._engine = engine

    def __call__(self, logits: torch.Tensor, parameters: DrawParameters) -> torch.Tensor | None:
        assert logits.stride(1) == 1 and logits.dtype == torch.float32
        rows, vocabulary = logits.shape
        ids = numpy.empty((rows, MOST_CONTENDERS), dtype=numpy.int64)
        counts = numpy.empty(rows, dtype=numpy.int32)
        inputs = (
            lowest_temperature(parameters.temperature),
            numpy.ascontiguousarray(parameters.top_k, dtype=numpy.int64),
            numpy.ascontiguousarray(parameters.top_p, dtype=numpy.float32),
            numpy.ascontiguousarray(parameters.min_p, dtype=numpy.float32),
            numpy.ascontiguousarray(parameters.keys, dtype=numpy.int32),
        )
        pointers = [array.ctypes.data for array in (*inputs, ids, counts)]
        draws = DrawsStruct(logits.data_ptr(), logits.stride(0), rows, vocabulary, MOST_CONTENDERS, *pointers)
        self._library.candor_contenders(self._engine, ctypes.byref(draws))
        return torch.from_numpy(ids[:, : int(counts.max())]) if counts.min() > 0 else None


def choose_search(model: CausalModel) -> Search | None:
    """Who searches the model's logits, None for plain torch."""
    return ContenderSearch(*model.engine) if isinstance(model, CpuDecoder) else None
