"""Top-k, top-p and min-p as one cut per row: ids with a logit below it are out.

The cut is found among the most likely ids; only a row whose cut lies beyond them has its whole vocabulary sorted.
"""

from dataclasses import dataclass

import numpy
import torch


@dataclass(frozen=True)
class Filters:
    """What filters each row: [rows] each."""

    temperature: torch.Tensor  # float32, > 0
    top_k: torch.Tensor  # int64, 0: off
    top_p: torch.Tensor  # float32, 1: off
    min_p: torch.Tensor  # float32, 0: off

    def select(self, rows: torch.Tensor) -> "Filters":
        return Filters(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows])


@dataclass(frozen=True)
class Cut:
    """The smallest logit that survives, and whether it is certain: no logit outside the ones looked at could survive."""

    logits: torch.Tensor  # [rows, 1] float32
    settled: torch.Tensor  # [rows] bool


def find_cut(values: torch.Tensor, logits: torch.Tensor, filters: Filters) -> Cut:
    """From the largest logits of each row, descending: values [rows, count] of logits [rows, vocab].

    Probabilities are those after temperature. Top-p counts what top-k has left, renormalised; min-p compares with the most
    likely id. Ids that tie with the last survivor survive too: which of equals a sort puts first is its own affair, and
    a draw must not depend on it.
    """
    count, vocab_size = values.shape[1], logits.shape[1]
    temperature, largest, last = filters.temperature[:, None], values[:, :1], values[:, -1:]
    limited = (filters.top_k > 0) & (filters.top_k < vocab_size)
    kth = (torch.where(limited, filters.top_k, count).clamp(max=count) - 1)[:, None]
    k_cut = torch.where(limited[:, None], values.gather(1, kth), -torch.inf)
    min_cut = largest + temperature * torch.log(filters.min_p)[:, None]
    nucleus = (filters.top_p < 1.0)[:, None]
    scaled = ((values - largest) / temperature).masked_fill_(values < k_cut, -torch.inf)
    normaliser = torch.logsumexp(scaled, dim=-1)
    if count < vocab_size and bool((filters.top_p < 1.0).logical_and(~limited).any()):
        whole = (logits - largest).div_(temperature).exp_().sum(dim=-1).log_()  # the largest is known: one pass less
        normaliser = torch.where(limited, normaliser, whole)
    probabilities = torch.exp(scaled - normaliser[:, None])
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = (before < filters.top_p[:, None]).sum(dim=-1, keepdim=True).clamp(min=1)
    p_cut = torch.where(nucleus, values.gather(1, kept - 1), -torch.inf)
    # Settled when the last value is below the cut. With top-k that must be its own cut: ties with the k-th count in the
    # normaliser. Top-p has a cut of its own only once it has left a value out.
    p_closed = nucleus & (kept < count) & (last < p_cut)
    closed = torch.where(limited[:, None], last < k_cut, p_closed | (last < min_cut)) | (last == -torch.inf)
    if count == vocab_size:
        closed = torch.ones_like(closed)
    return Cut(torch.maximum(torch.maximum(k_cut, p_cut), min_cut), closed[:, 0])


def sort_descending(logits: torch.Tensor) -> torch.Tensor:
    """Every row's values without their ids: [rows, vocab]. numpy's sort of floats is vectorised, torch's is not."""
    if logits.device.type == "cpu":
        return torch.from_numpy(numpy.sort(logits.numpy(), axis=-1)).flip(-1)
    return logits.sort(dim=-1, descending=True).values
