"""Top-k, top-p and min-p without sorting the vocabulary."""

from dataclasses import dataclass

import torch

FIRST_CANDIDATES = 128
GROWTH = 8


@dataclass(frozen=True)
class Candidates:
    """The most likely ids of some rows, best first; a filtered one has the logit -inf."""

    logits: torch.Tensor  # [rows, candidates] float32
    ids: torch.Tensor  # [rows, candidates] int64
    settled: torch.Tensor  # [rows] bool: no id beyond these can survive


def min_p_floor(logits: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Masks ids less likely than `min_p` [rows] times the most likely one; 0 is off: [rows, vocab]."""
    floor = logits.amax(dim=-1, keepdim=True) + torch.log(min_p)[:, None]
    return logits.masked_fill(logits < floor, -torch.inf)


def filter_candidates(
    logits: torch.Tensor,  # [rows, vocab], after temperature
    top_k: torch.Tensor,  # [rows] int64, 0: off
    top_p: torch.Tensor,  # [rows] float32, 1: off
    min_p: torch.Tensor,  # [rows] float32, 0: off
    count: int,
) -> Candidates:
    """Looks at the `count` most likely ids of each row; rows that need more are not settled.

    Top-p counts the probabilities that top-k has left, renormalised; min-p compares with the most likely id. Ids that tie
    with the last survivor survive too: which of equals a sort puts first would depend on its length, and so on the batch.
    """
    vocab_size = logits.shape[1]
    values, ids = logits.topk(count, dim=-1)
    last = values[:, -1:]
    limited = (top_k > 0) & (top_k < vocab_size)
    kth = (torch.where(limited, top_k, count).clamp(max=count) - 1)[:, None]
    k_cut = torch.where(limited[:, None], values.gather(1, kth), -torch.inf)
    survivors = values >= k_cut
    among_survivors = torch.logsumexp(values.masked_fill(~survivors, -torch.inf), dim=-1)
    normaliser = torch.where(limited, among_survivors, torch.logsumexp(logits, dim=-1))
    probabilities = torch.exp(values - normaliser[:, None]) * survivors
    before = probabilities.cumsum(dim=-1) - probabilities
    within = (before < top_p[:, None]) | (top_p >= 1.0)[:, None]
    kept = within.sum(dim=-1, keepdim=True).clamp(min=1)
    p_cut = torch.where((top_p < 1.0)[:, None], values.gather(1, kept - 1), -torch.inf)
    min_cut = values[:, :1] + torch.log(min_p)[:, None]
    cut = torch.maximum(torch.maximum(k_cut, p_cut), min_cut)
    # Settled when the last candidate is below the cut. With top-k that must be its own cut: ties with the k-th count in
    # the normaliser. Top-p has a cut of its own only once it has left a candidate out.
    p_closed = (kept < count) & (top_p < 1.0)[:, None] & (last < p_cut)
    closed = torch.where(limited[:, None], last < k_cut, p_closed | (last < min_cut))
    settled = closed[:, 0] | (last[:, 0] == -torch.inf)
    if count == vocab_size:
        settled = torch.ones_like(settled)
    return Candidates(values.masked_fill(values < cut, -torch.inf), ids, settled)
