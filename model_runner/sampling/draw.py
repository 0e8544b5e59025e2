"""The draw: argmax for greedy rows, Gumbel-max for the others."""

from dataclasses import dataclass

import numpy
import torch
from numpy.typing import NDArray

from model_runner.sampling.filters import FIRST_CANDIDATES, GROWTH, filter_candidates, min_p_floor
from model_runner.sampling.noise import gumbel_noise

SMALLEST_TEMPERATURE = 1e-30
"""Below this a float32 quotient is 0 / 0; it is greedy long before."""


@dataclass(frozen=True)
class DrawParameters:
    """How each draw is made: [draws] each."""

    temperature: NDArray[numpy.float32]
    top_k: NDArray[numpy.int64]
    top_p: NDArray[numpy.float32]
    min_p: NDArray[numpy.float32]
    keys: NDArray[numpy.int32]  # [draws, 2]

    def select(self, draws: NDArray[numpy.int64]) -> "DrawParameters":
        return DrawParameters(
            self.temperature[draws], self.top_k[draws], self.top_p[draws], self.min_p[draws], self.keys[draws]
        )


def draw(logits: torch.Tensor, parameters: DrawParameters, vocabulary: torch.Tensor) -> torch.Tensor:
    """Draws one id per row of logits [draws, vocab]: [draws] int64. `vocabulary` is arange(vocab), int32, on the device.

    A row whose logits are all -inf or not finite gets some id; the caller knows such rows.
    """
    filtered = (parameters.top_p < 1.0) | ((parameters.top_k > 0) & (parameters.top_k < logits.shape[1]))
    random = parameters.temperature > 0
    ways = (
        (numpy.flatnonzero(~random), draw_greedy),
        (numpy.flatnonzero(random & ~filtered), draw_unfiltered),
        (numpy.flatnonzero(random & filtered), draw_filtered),
    )
    ids = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    for draws, way in ways:
        if len(draws) == logits.shape[0]:
            return way(logits, parameters, vocabulary)
        if len(draws):
            index = torch.from_numpy(draws).to(logits.device)
            ids[index] = way(logits[index], parameters.select(draws), vocabulary)
    return ids


def draw_greedy(logits: torch.Tensor, parameters: DrawParameters, vocabulary: torch.Tensor) -> torch.Tensor:
    return logits.argmax(dim=-1)


def draw_unfiltered(logits: torch.Tensor, parameters: DrawParameters, vocabulary: torch.Tensor) -> torch.Tensor:
    """From the whole vocabulary, or what min-p leaves of it."""
    scaled = scale(logits, parameters)
    if (parameters.min_p > 0).any():
        scaled = min_p_floor(scaled, torch.from_numpy(parameters.min_p).to(logits.device))
    keys = torch.from_numpy(parameters.keys).to(logits.device)
    return gumbel_noise(keys, vocabulary).add_(scaled).argmax(dim=-1)


def draw_filtered(logits: torch.Tensor, parameters: DrawParameters, vocabulary: torch.Tensor) -> torch.Tensor:
    """Noise for candidates only. Rows whose survivors are more than the candidates go round again with more of them."""
    device, vocab_size = logits.device, logits.shape[1]
    ids = torch.empty(logits.shape[0], dtype=torch.int64, device=device)
    scaled = scale(logits, parameters)
    pending = numpy.arange(logits.shape[0])
    limits = parameters.top_k[parameters.top_k < vocab_size]
    count = min(vocab_size, max(FIRST_CANDIDATES, int(limits.max(initial=0)) + 1))
    while len(pending):
        part = parameters.select(pending)
        candidates = filter_candidates(
            scaled,
            torch.from_numpy(part.top_k).to(device),
            torch.from_numpy(part.top_p).to(device),
            torch.from_numpy(part.min_p).to(device),
            count,
        )
        noise = gumbel_noise(torch.from_numpy(part.keys).to(device), candidates.ids.int())
        winners = noise.add_(candidates.logits).argmax(dim=-1, keepdim=True)
        ids[torch.from_numpy(pending).to(device)] = candidates.ids.gather(1, winners)[:, 0]
        unsettled = numpy.flatnonzero(~candidates.settled.cpu().numpy())
        pending = pending[unsettled]
        scaled = scaled[torch.from_numpy(unsettled).to(device)]
        count = min(vocab_size, count * GROWTH)
    return ids


def scale(logits: torch.Tensor, parameters: DrawParameters) -> torch.Tensor:
    """Logits over temperature. The largest is moved to 0 first: a tiny temperature must not overflow it."""
    temperature = torch.from_numpy(numpy.maximum(parameters.temperature, SMALLEST_TEMPERATURE)).to(logits.device)
    largest = logits.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)  # -inf - -inf would be NaN
    return (logits - largest) / temperature[:, None]
