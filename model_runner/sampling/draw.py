"""The draw: argmax for greedy rows, Gumbel-max for the others.

argmax(logits / temperature + noise) is taken as argmax(logits + temperature * noise): nothing to overflow, and one pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy
import torch
from numpy.typing import NDArray

from model_runner.device_arrays import to_device
from model_runner.sampling.filters import Filters, find_cut
from model_runner.sampling.noise import gumbel_noise
from model_runner.sampling.survivors import Survivors, sorted_survivors

FIRST_CANDIDATES = 128
MOST_CANDIDATES = 1024
"""From about here on, sorting all values is cheaper than selecting the largest with their ids."""

SMALLEST_TEMPERATURE = 1e-30
"""Below this quotients of differences and temperature leave float32; it is greedy long before."""


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


Way = Callable[[torch.Tensor, DrawParameters, torch.Tensor], torch.Tensor]
"""(logits [draws, vocab], their parameters, vocabulary) -> ids [draws] int64."""

Search = Callable[[torch.Tensor, DrawParameters], torch.Tensor | None]
"""(logits float32 [draws, vocab], their parameters) -> ids int64 [draws, any number], ascending until they repeat the
first, among which is each draw's winner; None if some draw has so many as good as equal that torch must look at all."""


def draw(
    logits: torch.Tensor,
    parameters: DrawParameters,
    vocabulary: torch.Tensor,
    survivors: Survivors = sorted_survivors,
    search: Search | None = None,
) -> torch.Tensor:
    """Draws one id per row of logits [draws, vocab]: [draws] int64. `vocabulary` is arange(vocab), int32, on the device.
    `survivors` filters rows whose whole vocabulary must be looked at; where there is a `search`, few ids are left to torch.

    A row whose logits are all -inf or not finite gets some id; the caller knows such rows.
    """
    limited = (parameters.top_k > 0) & (parameters.top_k < logits.shape[1])
    filtered = limited | (parameters.top_p < 1.0) | (parameters.min_p > 0.0)
    random = parameters.temperature > 0
    ways: list[tuple[NDArray[numpy.int64], Way]] = [(numpy.flatnonzero(~random), draw_greedy)]
    if search is None:
        ways.append((numpy.flatnonzero(random & ~filtered), draw_unfiltered))
        ways.append((numpy.flatnonzero(random & filtered), partial(draw_filtered, survivors=survivors)))
    else:
        ways.append((numpy.flatnonzero(random), partial(draw_searched, survivors=survivors, search=search)))
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


def draw_searched(
    logits: torch.Tensor, parameters: DrawParameters, vocabulary: torch.Tensor, survivors: Survivors, search: Search
) -> torch.Tensor:
    """From the ids that can win."""
    contenders = search(logits, parameters)
    if contenders is None and len(logits) > 1:
        # One by one: torch's cut may differ in its last bit, so a row must not get it for what another row holds.
        draws = [(logits[row : row + 1], parameters.select(numpy.array([row]))) for row in range(len(logits))]
        return torch.cat([draw_searched(one, its, vocabulary, survivors, search) for one, its in draws])
    if contenders is None:
        return draw(logits, parameters, vocabulary, survivors)
    if contenders.shape[1] == 1:
        return contenders[:, 0]
    noise = gumbel_noise(to_device(parameters.keys, logits.device), contenders.int())
    scores = noise.mul_(_temperature(parameters, logits)[:, None]).add_(logits.gather(1, contenders))
    return contenders.gather(1, largest_column(scores)[:, None])[:, 0]


def draw_unfiltered(logits: torch.Tensor, parameters: DrawParameters, vocabulary: torch.Tensor) -> torch.Tensor:
    """From the whole vocabulary."""
    keys = to_device(parameters.keys, logits.device)
    return largest_column(gumbel_noise(keys, vocabulary).mul_(_temperature(parameters, logits)[:, None]).add_(logits))


def draw_filtered(
    logits: torch.Tensor, parameters: DrawParameters, vocabulary: torch.Tensor, survivors: Survivors
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
    values, candidates = logits.topk(count, dim=-1)
    cut = find_cut(values, logits, filters)
    noise = gumbel_noise(keys, candidates.int()).mul_(filters.temperature[:, None])
    winners = largest_column(noise.add_(values).masked_fill_(values < cut.logits, -torch.inf))
    ids = candidates.gather(1, winners[:, None])[:, 0]
    unsettled = torch.nonzero(~cut.settled)[:, 0]
    if len(unsettled):
        left, rest = filters.select(unsettled), logits[unsettled]
        ids[unsettled] = _draw_surviving(rest, survivors(rest, left), left, keys[unsettled], vocabulary)
    return ids


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
    return to_device(lowest_temperature(parameters.temperature), logits.device)


def lowest_temperature(temperature: NDArray[numpy.float32]) -> NDArray[numpy.float32]:
    """No lower than what float32 can divide by."""
    return numpy.maximum(temperature, numpy.float32(SMALLEST_TEMPERATURE))
