"""Activation functions by their name in configurations, and gating."""

from collections.abc import Callable

import torch
from torch.nn import functional

from model_runner.layers.ops import FusedOps, Gate

Activation = Callable[[torch.Tensor], torch.Tensor]


def _gelu_tanh(inputs: torch.Tensor) -> torch.Tensor:
    return functional.gelu(inputs, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_new": _gelu_tanh,
    "relu": functional.relu,
}


def gated(activation: Activation, gate_up: torch.Tensor) -> torch.Tensor:
    """`activation(gate) * up` of the two halves of the last dimension."""
    gate, up = gate_up.chunk(2, dim=-1)
    return activation(gate) * up


def gate_of(name: str, ops: FusedOps) -> Gate:
    """The gate of an activation, by a fused kernel where there is one; KeyError for an unknown name."""
    activation = ACTIVATIONS[name]
    return ops.gates.get(name) or (lambda gate_up: gated(activation, gate_up))


def clamped_swiglu(gate_up: torch.Tensor, limit: float, slope: float) -> torch.Tensor:
    """GPT-OSS's gate: halves clamped to `limit`, the gate's sigmoid steepened by `slope`, one added to the other half."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    up = up.clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(gate * slope)
