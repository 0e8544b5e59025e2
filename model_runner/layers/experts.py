"""A mixture of gated experts, each split over ranks along its intermediate dimension."""

import torch

from model_runner.layers.activations import clamped_swiglu, gate_of
from model_runner.layers.declarations import ExpertsDeclaration, GatedDeclaration
from model_runner.layers.feed_forward import GatedFeedForward
from model_runner.layers.grouped_experts import Expert, Experts, ExpertsApart, Gate, GroupedExperts, can_be_grouped
from model_runner.layers.linear import Linear, column_linear
from model_runner.layers.parallel import share
from model_runner.layers.routing import Router
from model_runner.loading.weights import RowBlock, Weights


class MixtureOfExperts:
    """Each token's chosen experts, weighted, and a shared expert beside them where there is one."""

    def __init__(self, weights: Weights, declared: ExpertsDeclaration, hidden_size: int) -> None:
        self.communicator = weights.communicator
        self.chosen = declared.routing.chosen
        self.router = Router(weights, declared.routing, hidden_size)
        load = {"split": _load_split, "numbered": _load_numbered, "stacked": _load_stacked}[declared.layout]
        inner, count = weights.under("experts"), declared.routing.experts
        size = declared.intermediate_size // weights.communicator.world
        loaded = (load(inner, declared, hidden_size, index) for index in range(count))
        grouped = can_be_grouped(weights.state, (hidden_size, size, 2 * size))
        self.experts: Experts = GroupedExperts(loaded, count) if grouped else ExpertsApart(loaded)
        self.gate: Gate
        clamp = declared.clamp
        if clamp is not None:
            self.gate = lambda gate_up: clamped_swiglu(gate_up, clamp.limit, clamp.slope)
        else:
            self.gate = gate_of(declared.activation, weights.state.ops)
        self.shared: GatedFeedForward | None = None
        if declared.shared_intermediate_size is not None:
            shared = GatedDeclaration(declared.shared_intermediate_size, declared.activation)
            self.shared = GatedFeedForward(weights.under("shared_experts"), shared, hidden_size)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        gains, experts = self.router(hidden)
        flat = experts.flatten()
        order = flat.argsort(stable=True)
        products = hidden.new_empty(flat.numel(), hidden.shape[-1])
        products[order] = self.experts(hidden[order // self.chosen], flat[order], self.gate)
        # Summed in the order of choice, not of arrival by expert: a token's sum is the same in any batch.
        weighted = torch.unflatten(products, 0, (-1, self.chosen)) * gains[..., None]
        mixed = self.communicator.all_reduce(weighted.sum(dim=1).to(hidden.dtype))
        return mixed if self.shared is None else mixed + self.shared(hidden)


def _load_split(weights: Weights, declared: ExpertsDeclaration, hidden_size: int, index: int) -> Expert:
    return _load_apart(weights.under(str(index)), declared, hidden_size, ("gate_proj", "up_proj", "down_proj"))


def _load_numbered(weights: Weights, declared: ExpertsDeclaration, hidden_size: int, index: int) -> Expert:
    return _load_apart(weights.under(str(index)), declared, hidden_size, ("w1", "w3", "w2"))


def _load_apart(
    weights: Weights, declared: ExpertsDeclaration, hidden_size: int, names: tuple[str, str, str]
) -> Expert:
    size = declared.intermediate_size
    held = share(size, weights.communicator, "moe_intermediate_size")
    gate_up = column_linear(weights, [RowBlock(name, size, held) for name in names[:2]], hidden_size, bias=False)
    down = weights.rows([RowBlock(f"{names[2]}.weight", hidden_size)], size, held)
    return Expert(gate_up, Linear(weights.form(down)))


def _load_stacked(weights: Weights, declared: ExpertsDeclaration, hidden_size: int, index: int) -> Expert:
    count, size = declared.routing.experts, declared.intermediate_size
    held = share(size, weights.communicator, "intermediate_size")
    pairs = slice(2 * held.start, 2 * held.stop)
    one, everything = slice(index, index + 1), slice(None)
    gate_up = weights.tensor("gate_up_proj", (count, hidden_size, 2 * size), (one, everything, pairs))[0]
    gate_up_bias = weights.tensor("gate_up_proj_bias", (count, 2 * size), (one, pairs))[0]
    down = weights.tensor("down_proj", (count, size, hidden_size), (one, held, everything))[0]
    down_bias = weights.tensor("down_proj_bias", (count, hidden_size), (one, everything))[0]
    weights.state.weight_bytes -= sum(weight.numel() * weight.element_size() for weight in (gate_up, down))
    if weights.communicator.rank != 0:
        down_bias = torch.zeros_like(down_bias)  # the sum over ranks must hold it once
    apart = torch.cat((gate_up[:, 0::2].T, gate_up[:, 1::2].T))
    apart_bias = torch.cat((gate_up_bias[0::2], gate_up_bias[1::2]))
    return Expert(
        Linear(weights.form(apart), apart_bias),
        Linear(weights.form(down.T.contiguous()), down_bias),
    )
