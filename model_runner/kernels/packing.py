"""Weights in the forms that the kernels read: panels of 16 outputs (source/linear.h describes each form byte by byte)."""

from dataclasses import dataclass
from typing import Literal

import torch

Form = Literal["int4", "int8", "bfloat16", "float32"]

PANEL = 16
GROUP = 32


@dataclass(frozen=True)
class GroupedWeight:
    """A weight in groups of 32 inputs: `scale * quants (+ minimum)`.

    int4: quants uint8 0..15 with a minimum; int8: quants int8 -127..127 without.
    """

    quants: torch.Tensor  # [outputs, inputs]
    scales: torch.Tensor  # [outputs, inputs / 32] float16
    minimums: torch.Tensor | None = None  # [outputs, inputs / 32] float16

    def dense(self) -> torch.Tensor:
        """The weight that the arithmetic stands for, float32 [outputs, inputs]."""
        grouped = torch.unflatten(self.quants.float(), 1, (-1, GROUP)) * self.scales.float().unsqueeze(2)
        if self.minimums is not None:
            grouped = grouped + self.minimums.float().unsqueeze(2)
        return grouped.flatten(1)


@dataclass(frozen=True)
class PackedWeight:
    """A linear layer's weight (and bias) as one block of bytes for the kernels.

    `outputs` counts the zero rows that fill the last panel, `rows` those of the original weight.
    """

    form: Form
    outputs: int
    inputs: int
    rows: int
    gated: bool
    data: torch.Tensor  # uint8
    bias: torch.Tensor | None  # [outputs] float32
    terms: int = 1
    """int8 terms per activation (1 or 2) that an integer form multiplies with."""

    @property
    def weight_bytes(self) -> int:
        return self.data.nbytes + (0 if self.bias is None else self.bias.nbytes)


def quantise_int8(weight: torch.Tensor) -> GroupedWeight:
    """Symmetric int8 per group of 32 inputs, round to nearest: [outputs, inputs] in, the same out."""
    grouped = torch.unflatten(weight.float(), 1, (-1, GROUP))
    scales = (grouped.abs().amax(2) / 127).half()
    divisor = scales.float().unsqueeze(2)
    quants = torch.where(divisor > 0, grouped / divisor.clamp(min=1e-30), 0.0).round().clamp(-127, 127)
    return GroupedWeight(quants.flatten(1).to(torch.int8), scales)


def quantise_int4(weight: torch.Tensor) -> GroupedWeight:
    """Asymmetric int4 per group of 32 inputs: scale and minimum from the group's range."""
    grouped = torch.unflatten(weight.float(), 1, (-1, GROUP))
    minimums = grouped.amin(2).half()
    scales = ((grouped.amax(2) - minimums.float()) / 15).half()
    divisor = scales.float().unsqueeze(2)
    quants = torch.where(divisor > 0, (grouped - minimums.float().unsqueeze(2)) / divisor.clamp(min=1e-30), 0.0)
    return GroupedWeight(quants.round().clamp(0, 15).flatten(1).to(torch.uint8), scales, minimums)


def _pad_rows(tensor: torch.Tensor) -> torch.Tensor:
    missing = -tensor.shape[0] % PANEL
    return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])]) if missing else tensor


def _interleave(tensor: torch.Tensor) -> torch.Tensor:
    """[gate rows, up rows] to alternating panels of 16 of each."""
    gate, up = torch.unflatten(tensor, 0, (2, -1, PANEL))
    return torch.stack([gate, up], dim=1).flatten(0, 2)


def _halves(tensor: torch.Tensor) -> torch.Tensor:
    """float16 [outputs, groups] to bytes [panels, groups, 32]."""
    return torch.unflatten(tensor, 0, (-1, PANEL)).transpose(1, 2).contiguous().view(torch.uint8)


def _quads(quants: torch.Tensor) -> torch.Tensor:
    """[outputs, inputs] bytes to [panels, groups, 8 quads, 64]."""
    split = torch.unflatten(torch.unflatten(quants, 0, (-1, PANEL)), 2, (-1, GROUP // 4, 4))
    return split.permute(0, 2, 3, 1, 4).contiguous().view(torch.uint8).flatten(3)


def pack_grouped(
    weight: GroupedWeight, bias: torch.Tensor | None = None, *, gated: bool = False, terms: int = 1
) -> PackedWeight:
    """Packs an int4 or int8 weight; a gated one holds the gate's rows, then as many of the up projection."""
    arrange = (lambda tensor: _interleave(tensor)) if gated else _pad_rows
    rows, inputs = weight.quants.shape
    _check(rows, inputs, gated)
    quads = _quads(arrange(weight.quants))
    if weight.minimums is None:
        parts = [quads.flatten(2), _halves(arrange(weight.scales))]
    else:
        nibbles = quads[:, :, :4] | (quads[:, :, 4:] << 4)
        parts = [nibbles.flatten(2), _halves(arrange(weight.scales)), _halves(arrange(weight.minimums))]
    form: Form = "int8" if weight.minimums is None else "int4"
    data = torch.cat(parts, dim=2).flatten().contiguous()
    return PackedWeight(form, quads.shape[0] * PANEL, inputs, rows, gated, data, _bias(bias, arrange), terms)


def pack_dense(weight: torch.Tensor, bias: torch.Tensor | None = None, *, gated: bool = False) -> PackedWeight:
    """Packs a bfloat16 or float32 weight [outputs, inputs] as it is."""
    arrange = (lambda tensor: _interleave(tensor)) if gated else _pad_rows
    rows, inputs = weight.shape
    _check(rows, inputs, gated)
    per_line = 2 if weight.dtype == torch.bfloat16 else 1
    pieces = torch.unflatten(torch.unflatten(arrange(weight), 0, (-1, PANEL)), 2, (-1, per_line))
    panels = pieces.transpose(1, 2).contiguous()
    form: Form = "bfloat16" if per_line == 2 else "float32"
    data = panels.view(torch.uint8).flatten()
    return PackedWeight(form, panels.shape[0] * PANEL, inputs, rows, gated, data, _bias(bias, arrange))


def _bias(bias: torch.Tensor | None, arrange: object) -> torch.Tensor | None:
    return None if bias is None else arrange(bias.float()).contiguous()  # type: ignore[operator]


def _check(rows: int, inputs: int, gated: bool) -> None:
    if inputs % GROUP or (gated and rows % (2 * PANEL)):
        raise ValueError(f"the CPU kernels need inputs in multiples of {GROUP}, not a weight [{rows}, {inputs}]")
