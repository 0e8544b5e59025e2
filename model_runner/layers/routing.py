"""How tokens choose experts."""

import torch
from torch.nn import functional

from model_runner.layers.declarations import RoutingDeclaration
from model_runner.loading.weights import Weights


class Router:
    """Held whole by every rank, so that all choose alike."""

    def __init__(self, weights: Weights, declared: RoutingDeclaration, hidden_size: int) -> None:
        self.declared = declared
        inner = weights.under(declared.name)
        dtype = torch.float32 if declared.float32 else None
        self.weight = inner.tensor("weight", (declared.experts, hidden_size), dtype=dtype)
        self.bias = inner.tensor("bias", (declared.experts,), dtype=dtype) if declared.router_bias else None
        self.correction: torch.Tensor | None = None
        if declared.correction_bias is not None:
            self.correction = inner.tensor(declared.correction_bias, (declared.experts,), dtype=torch.float32)

    def __call__(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(weights, experts), both [tokens, chosen]; weights are float32."""
        declared = self.declared
        logits = functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias).to(torch.float32)
        if declared.scoring == "softmax_of_chosen":
            best, experts = logits.topk(declared.chosen, dim=-1)
            return best.softmax(dim=-1) * declared.scale, experts
        scores = logits.softmax(dim=-1) if declared.scoring == "softmax" else logits.sigmoid()
        standing = scores if self.correction is None else scores + self.correction
        if declared.groups > 1:
            standing = self._within_best_groups(standing)
        experts = standing.topk(declared.chosen, dim=-1).indices
        chosen = scores.gather(1, experts)
        if declared.normalise:
            chosen = chosen / (chosen.sum(dim=-1, keepdim=True) + 1e-20)
        return chosen * declared.scale, experts

    def _within_best_groups(self, standing: torch.Tensor) -> torch.Tensor:
        declared = self.declared
        grouped = torch.unflatten(standing, -1, (declared.groups, -1))  # [tokens, groups, experts of a group]
        counted = 1 if declared.group_score == "best" else 2
        group_scores = grouped.topk(counted, dim=-1).values.sum(dim=-1)
        kept = group_scores.topk(declared.groups_kept, dim=-1).indices
        out = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, kept, False)
        return grouped.masked_fill(out[..., None], float("-inf")).flatten(1)
