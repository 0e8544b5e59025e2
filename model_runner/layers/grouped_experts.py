"""The products of a layer's experts over rows that are sorted by expert: one expert after another, or all in one kernel.

How many rows an expert gets is known on the device alone. Reading it back makes every layer wait, and can't be part of a
captured graph; a grouped product reads it where it is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from model_runner.layers.linear import Linear
from model_runner.loading.weights import LoadState
from model_runner.quantization.forms import DenseForm

Gate = Callable[[torch.Tensor], torch.Tensor]

GROUPED_SINCE = (9, 0)
"""Compute capability from which torch's grouped product is a kernel; before, it is a loop that reads the counts back."""
ALIGNED_BYTES = 16


@dataclass(frozen=True)
class Expert:
    """One expert's share on this rank; the sum over ranks is taken once, after all experts."""

    gate_up: Linear
    down: Linear


class Experts(Protocol):
    @property
    def waits(self) -> bool:
        """Whether a step reads values back from the device."""

    def __call__(self, rows: torch.Tensor, expert_of_row: torch.Tensor, gate: Gate) -> torch.Tensor:
        """Of rows [rows, hidden] and their experts [rows] int64, ascending: [rows, hidden]."""


class ExpertsApart:
    """Weights of any form."""

    waits = True

    def __init__(self, experts: Iterable[Expert]) -> None:
        self._experts = list(experts)

    def __call__(self, rows: torch.Tensor, expert_of_row: torch.Tensor, gate: Gate) -> torch.Tensor:
        counts = torch.bincount(expert_of_row, minlength=len(self._experts)).tolist()
        parts = zip(self._experts, torch.split(rows, counts), strict=True)
        return torch.cat([expert.down(gate(expert.gate_up(part))) for expert, part in parts if len(part)])


class GroupedExperts:
    """Dense weights side by side."""

    waits = False

    def __init__(self, experts: Iterable[Expert], count: int) -> None:
        """Takes one expert at a time, so that the layer is never held twice."""
        for index, expert in enumerate(experts):
            if index == 0:
                self._gate_up, self._down = (_Stack(linear, count) for linear in (expert.gate_up, expert.down))
            self._gate_up.put(index, expert.gate_up)
            self._down.put(index, expert.down)
        self._numbers = torch.arange(count, device=self._down.weights.device)

    def __call__(self, rows: torch.Tensor, expert_of_row: torch.Tensor, gate: Gate) -> torch.Tensor:
        ends = torch.searchsorted(expert_of_row, self._numbers, right=True).to(torch.int32)
        return self._down(gate(self._gate_up(rows, expert_of_row, ends)), expert_of_row, ends)


class _Stack:
    """One linear of every expert."""

    def __init__(self, like: Linear, count: int) -> None:
        weight = _dense(like)
        self.weights = weight.new_empty(count, *weight.shape)  # [experts, out, in]
        self.biases = None if like.bias is None else like.bias.new_empty(count, *like.bias.shape)  # [experts, out]

    def put(self, index: int, linear: Linear) -> None:
        self.weights[index].copy_(_dense(linear))
        if self.biases is not None and linear.bias is not None:
            self.biases[index].copy_(linear.bias)

    def __call__(self, rows: torch.Tensor, expert_of_row: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = functional.grouped_mm(rows, self.weights.transpose(1, 2), offs=ends)
        return product if self.biases is None else product + self.biases[expert_of_row]


def _dense(linear: Linear) -> torch.Tensor:
    assert isinstance(linear.form, DenseForm)
    return linear.form.weight


def can_be_grouped(state: LoadState, widths: Sequence[int]) -> bool:
    """Whether there is a kernel for dense experts of these widths (of inputs and outputs, on this rank)."""
    if state.device.type != "cuda" or state.make_form is not DenseForm or state.dtype != torch.bfloat16:
        return False
    aligned = all(width * state.dtype.itemsize % ALIGNED_BYTES == 0 for width in widths)
    return aligned and torch.cuda.get_device_capability(state.device) >= GROUPED_SINCE
