"""The draw: argmax for greedy rows, Gumbel-max for the others.

argmax(logits / temperature + noise) is taken as argmax(logits + temperature * noise): nothing to overflow, and one pass.
"""

from dataclasses import dataclass
from functools import partial

import numpy
import torch
from numpy.typing import NDArray

from model_runner.device_arrays import to_device
from model_runner.sampling.filters import Filters, find_cut
from model_runner.sampling.noise import gumbel_noise
from model_runner.sampling.selection import Selection, TorchSelection
from model_runner.sampling.survivors import Survivors, sorted_survivors

FIRST_CANDIDATES = 128
MOST_CANDIDATES = 1024
"""From about here on, sorting all values is cheaper than selecting the largest with their ids."""

SMALLEST_TEMPERATURE = 1e-30
"""Below this quotients of differences and temperature leave float32; it is greedy long before."""

TORCH_SELECTION = TorchSelection()


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


def draw(
    logits: torch.Tensor,
    parameters: DrawParameters,
    vocabulary: torch.Tensor,
    survivors: Survivors = sorted_survivors,
    selection: Selection = TORCH_SELECTION,
) -> torch.Tensor:
    """Draws one id per row of logits [draws, vocab]: [draws] int64. `vocabulary` is arange(vocab), int32, on the device.
    `survivors` filters rows whose whole vocabulary must be looked at, `selection` finds what else of a row matters.

    A row whose logits are all -inf or not finite gets some id; the caller knows such rows.
    """
    limited = (parameters.top_k > 0) & (parameters.top_k < logits.shape[1])
    filtered = limited | (parameters.top_p < 1.0) | (parameters.min_p > 0.0)
    random = parameters.temperature > 0
    ways = (
        (numpy.flatnonzero(~random), draw_greedy),
        (numpy.flatnonzero(random & ~filtered), partial(draw_unfiltered, selection=selection)),
        (numpy.flatnonzero(random & filtered), partial(draw_filtered, survivors=survivors, selection=selection)),
    )
    ids = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    for draws, way in ways:
        if len(draws) == logits.shape[0]:
            return way(logits, parameters, vocabulary)
        if len(draws):
            index = to_device(draws, logits.device)
            ids[index] = way(logits[index], parameters.select(draws), vocabulary)
    return ids


def draw_greedy(logits: torch.Tensor, parameters: DrawParameters, vocabulary: torch.Tensor) -> torch.Tensor:
    return largest_column(logits)


def draw_unfiltered(
    logits: torch.Tensor, parameters: DrawParameters, vocabulary: torch.Tensor, selection: Selection
) -> torch.Tensor:
    """From the whole vocabulary."""
    keys, temperature = to_device(parameters.keys, logits.device), _temperature(parameters, logits)
    contenders = selection.contenders(logits, temperature, parameters.keys)
    if contenders is None:
        return largest_column(gumbel_noise(keys, vocabulary).mul_(temperature[:, None]).add_(logits))
    noise = gumbel_noise(keys, contenders.int()).mul_(temperature[:, None])
    winners = largest_column(noise.add_(logits.gather(1, contenders)))
    return contenders.gather(1, winners[:, None])[:, 0]


def draw_filtered(
    logits: torch.Tensor,
    parameters: DrawParameters,
    vocabulary: torch.Tensor,
    survivors: Survivors,
    selection: Selection,
) -> torch.Tensor:
    """From the most likely ids, with noise for them only; rows that need more of them, from all ids above their cut."""
    device, vocab_size = logits.device, logits.shape[1]
    filters = Filters(
        _temperature(parameters, logits),
        to_device(parameters.top_k, device),
        to_device(parameters.top_p, device),
        to_device(parameters.min_p, device),
    )
    keys = to_device(parameters.keys, device)
    if device.type != "cpu":
        # Which rows are unsettled is known on the device only; waiting for it costs more than sorting all.
        return _draw_surviving(logits, survivors(logits, filters), filters, keys, vocabulary)
    within_reach = parameters.top_k[parameters.top_k < MOST_CANDIDATES]
    count = min(vocab_size, max(FIRST_CANDIDATES, int(within_reach.max(initial=0)) + 1))
    ids, unsettled = _draw_from_largest(logits, count, filters, keys, selection)
    for more in selection.second_counts:
        if len(unsettled) and more < vocab_size:
            again = filters.select(unsettled)
            ids[unsettled], still = _draw_from_largest(logits[unsettled], more, again, keys[unsettled], selection)
            unsettled = unsettled[still]
    if len(unsettled):
        left, rest = filters.select(unsettled), logits[unsettled]
        ids[unsettled] = _draw_surviving(rest, survivors(rest, left), left, keys[unsettled], vocabulary)
    return ids


def _draw_from_largest(
    logits: torch.Tensor, count: int, filters: Filters, keys: torch.Tensor, selection: Selection
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids drawn from the `count` most likely of each row, and the indices of rows that need more: [rows] int64 both."""
    largest = selection.largest(logits, count, filters.temperature)
    cut = find_cut(largest.values, logits, filters, largest.log_sums)
    noise = gumbel_noise(keys, largest.ids.int()).mul_(filters.temperature[:, None])
    winners = largest_column(noise.add_(largest.values).masked_fill_(largest.values < cut.logits, -torch.inf))
    return largest.ids.gather(1, winners[:, None])[:, 0], torch.nonzero(~cut.settled)[:, 0]


def _draw_surviving(
    logits: torch.Tensor, surviving: torch.Tensor, filters: Filters, keys: torch.Tensor, vocabulary: torch.Tensor
) -> torch.Tensor:
    noise = gumbel_noise(keys, vocabulary).mul_(filters.temperature[:, None])
    return largest_column(noise.add_(logits).masked_fill_(~surviving, -torch.inf))


def largest_column(values: torch.Tensor) -> torch.Tensor:
    """The first largest of each row: [rows] int64. numpy's argmax is vectorised on the CPU, torch's is not."""
    if values.device.type == "cpu":
        return torch.from_numpy(values.numpy().argmax(axis=-1))
    return values.argmax(dim=-1)


def _temperature(parameters: DrawParameters, logits: torch.Tensor) -> torch.Tensor:
    return to_device(numpy.maximum(parameters.temperature, numpy.float32(SMALLEST_TEMPERATURE)), logits.device)
