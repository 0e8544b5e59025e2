"""The gated feed-forward layer."""

import torch

from model_runner.layers.activations import gate_of
from model_runner.layers.declarations import GatedDeclaration
from model_runner.layers.linear import column_linear, row_linear
from model_runner.layers.parallel import share
from model_runner.loading.weights import RowBlock, Weights


class GatedFeedForward:
    """This rank's share of the intermediate dimension."""

    def __init__(self, weights: Weights, declared: GatedDeclaration, hidden_size: int) -> None:
        size = declared.intermediate_size
        held = share(size, weights.communicator, "intermediate_size")
        if declared.fused_projection is None:
            blocks = [RowBlock(name, size, held) for name in ("gate_proj", "up_proj")]
        else:
            second = slice(size + held.start, size + held.stop)
            blocks = [RowBlock(declared.fused_projection, 2 * size, region) for region in (held, second)]
        self.gate_up = column_linear(weights, blocks, hidden_size, declared.bias)
        self.down = row_linear(weights, "down_proj", size, hidden_size, declared.bias)
        self.gate = gate_of(declared.activation, weights.state.ops)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down(self.gate(self.gate_up(hidden)))
