"""Which ids top-k, top-p and min-p leave, over whole rows on a GPU: by flashinfer's thresholds, else by a sort.

Only the filtering is a library's. Its samplers draw with a generator's state or by row, and Candor's draws depend on
seed and position alone. For the same reason sums must not depend on the order in which blocks arrive, which flashinfer
promises where it is asked to (`is_deterministic`); sgl_kernel's functions of these names can't be asked.
"""

from collections.abc import Callable
from typing import Any

import torch

from model_runner.layers.ops import NATIVE, import_flashinfer
from model_runner.sampling.filters import Filters, find_cut, sort_descending

Survivors = Callable[[torch.Tensor, Filters], torch.Tensor]
"""(logits float32 [rows, vocab], filters) -> [rows, vocab] bool. Of equal logits all survive or none."""


def sorted_survivors(logits: torch.Tensor, filters: Filters) -> torch.Tensor:
    return logits >= find_cut(sort_descending(logits), logits, filters).logits


def flashinfer_survivors(library: Any) -> Survivors:
    def survivors(logits: torch.Tensor, filters: Filters) -> torch.Tensor:
        logits = logits.contiguous()
        temperature, largest = filters.temperature[:, None], logits.amax(dim=-1, keepdim=True)
        limited = ((filters.top_k > 0) & (filters.top_k < logits.shape[1]))[:, None]
        nucleus = (filters.top_p < 1.0)[:, None]
        # Rows without a filter go through its kernel with a harmless number, and what comes out for them is not used.
        kth = torch.where(limited[:, 0], filters.top_k, 1).to(torch.int32)
        masked: torch.Tensor = library.top_k_mask_logits(logits, kth)
        within = ~limited | (masked > -torch.inf)
        scaled = ((logits - largest) / temperature).masked_fill_(~within, -torch.inf)
        shares = torch.where(nucleus[:, 0], filters.top_p, 0.5)
        renormed: torch.Tensor = library.top_p_renorm_probs(scaled.softmax(dim=-1), shares, is_deterministic=True)
        within &= ~nucleus | (renormed > 0)
        within &= logits >= largest + temperature * torch.log(filters.min_p)[:, None]
        return within | (logits == largest)

    return survivors


def choose_survivors(device: torch.device) -> tuple[Survivors, str]:
    """And whose they are."""
    library = import_flashinfer() if device.type == "cuda" else None
    if library is None or not hasattr(library, "top_k_mask_logits") or not hasattr(library, "top_p_renorm_probs"):
        return sorted_survivors, NATIVE
    return flashinfer_survivors(library), "flashinfer"
