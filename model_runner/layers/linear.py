"""Linears, whole or sharded: a column-parallel one holds some output rows, a row-parallel one some input columns."""

from collections.abc import Sequence

import torch

from model_runner.layers.parallel import Communicator, share
from model_runner.loading.weights import RowBlock, Weights
from model_runner.quantization.forms import WeightForm


class Linear:
    """`inputs @ weight.T + bias`; a row-parallel one sums the ranks' products before the bias."""

    def __init__(
        self, form: WeightForm, bias: torch.Tensor | None = None, reduce_over: Communicator | None = None
    ) -> None:
        self.form = form
        self.bias = bias
        self.reduce_over = reduce_over if reduce_over is not None and reduce_over.world > 1 else None

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.reduce_over is None:
            return self.form.apply(inputs, self.bias)
        outputs = self.reduce_over.all_reduce(self.form.apply(inputs, None))
        return outputs if self.bias is None else outputs + self.bias


def column_linear(weights: Weights, blocks: Sequence[RowBlock], in_features: int, bias: bool) -> Linear:
    """Row blocks of one or several projections fused into one linear. Block names lack the `.weight` ending."""
    named = [RowBlock(f"{block.name}.weight", block.rows, block.region) for block in blocks]
    form = weights.form(weights.rows(named, in_features))
    if not bias:
        return Linear(form)
    parts = [weights.tensor(f"{block.name}.bias", (block.rows,), (block.region,)) for block in blocks]
    return Linear(form, torch.cat(parts))


def row_linear(
    weights: Weights, name: str, in_features: int, out_features: int, bias: bool, columns: slice | None = None
) -> Linear:
    """A projection whose input is split over ranks (`columns`: this rank's, by default an equal share)."""
    if columns is None:
        columns = share(in_features, weights.communicator, f"{weights.prefix}{name} inputs")
    weight = weights.rows([RowBlock(f"{name}.weight", out_features)], in_features, columns)
    added = weights.tensor(f"{name}.bias", (out_features,)) if bias else None
    return Linear(weights.form(weight), added, weights.communicator)
