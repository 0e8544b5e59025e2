"""Weights in the forms that the kernels read: panels of 16 outputs (source/linear.h describes each form byte by byte)."""

from dataclasses import dataclass
from typing import Literal

import torch

Form = Literal["int4", "int8", "bfloat16", "float32"]
ActivationBits = Literal[8, 16]

PANEL = 16
GROUP = 32
HALF_GROUP = GROUP // 2
_HALVES_PER_GROUP = {"int4": 160, "int8": 272}
"""float16-sized units of one panel's group: its quants, its scales and, for int4, its minimums."""


@dataclass(frozen=True)
class GroupedWeight:
    """A weight in groups of 32 inputs: `scale * quant (+ minimum)`.

    int8: quants -127..127, without minimums. int4: quants 0..15, two to a byte: the first 16 of a group in the low halves
    of its 16 bytes, the others in the high ones (as GGUF's Q4 blocks have them).
    """

    quants: torch.Tensor  # int8 [outputs, inputs], or uint8 [outputs, inputs / 2]
    scales: torch.Tensor  # [outputs, inputs / 32] float16
    minimums: torch.Tensor | None = None  # [outputs, inputs / 32] float16

    @property
    def inputs(self) -> int:
        return self.scales.shape[1] * GROUP

    def dense(self) -> torch.Tensor:
        """The weight that the arithmetic stands for, float32 [outputs, inputs]."""
        if self.minimums is None:
            grouped = torch.unflatten(self.quants, 1, (-1, GROUP)).float()
            return (grouped * self.scales.float().unsqueeze(2)).flatten(1)
        packed = torch.unflatten(self.quants, 1, (-1, HALF_GROUP))
        grouped = torch.cat((packed & 15, packed >> 4), dim=2).float()
        return (grouped * self.scales.float().unsqueeze(2) + self.minimums.float().unsqueeze(2)).flatten(1)


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
    activation_bits: ActivationBits = 8
    """What an integer form rounds its inputs to."""

    @property
    def weight_bytes(self) -> int:
        return self.data.nbytes + (0 if self.bias is None else self.bias.nbytes)


def quantise_int8(weight: torch.Tensor) -> GroupedWeight:
    """Symmetric int8 per group of 32 inputs, round to nearest, of a weight [outputs, inputs]."""
    grouped = torch.unflatten(weight.float(), 1, (-1, GROUP))
    scales = (grouped.abs().amax(2) / 127).half()
    divisor = scales.float().unsqueeze(2)
    quants = torch.where(divisor > 0, grouped / divisor.clamp(min=1e-30), 0.0).round().clamp(-127, 127)
    return GroupedWeight(quants.flatten(1).to(torch.int8), scales)


def quantise_int4(weight: torch.Tensor) -> GroupedWeight:
    """Asymmetric int4 per group of 32 inputs, scale and minimum from the group's range, of a weight [outputs, inputs]."""
    grouped = torch.unflatten(weight.float(), 1, (-1, GROUP))
    minimums = grouped.amin(2).half()
    scales = ((grouped.amax(2) - minimums.float()) / 15).half()
    divisor = scales.float().unsqueeze(2)
    quants = torch.where(divisor > 0, (grouped - minimums.float().unsqueeze(2)) / divisor.clamp(min=1e-30), 0.0)
    return GroupedWeight(pack_nibbles(quants.round().clamp(0, 15).to(torch.uint8)), scales, minimums)


def pack_nibbles(grouped: torch.Tensor) -> torch.Tensor:
    """uint8 0..15 [outputs, groups, 32] to the bytes of `GroupedWeight.quants`."""
    return (grouped[..., :HALF_GROUP] | (grouped[..., HALF_GROUP:] << 4)).flatten(1)


def _panels(tensor: torch.Tensor, gated: bool) -> torch.Tensor:
    """[rows, ...] as [panels, 1, 16, ...], filled up with zero rows; a gated one, which holds gate rows and then as many
    up rows, as [panels / 2, 2, 16, ...], so that panels of both alternate."""
    if gated:
        return torch.unflatten(tensor, 0, (2, -1, PANEL)).transpose(0, 1)
    missing = -tensor.shape[0] % PANEL
    if missing:
        tensor = torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
    return torch.unflatten(tensor, 0, (-1, 1, PANEL))


def pack_grouped(
    weight: GroupedWeight,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
    activation_bits: ActivationBits = 8,
) -> PackedWeight:
    """Packs an int4 or int8 weight; a gated one holds the gate's rows, then as many of the up projection."""
    form: Form = "int8" if weight.minimums is None else "int4"
    rows, inputs, groups = weight.quants.shape[0], weight.inputs, weight.scales.shape[1]
    _check(rows, inputs, gated)
    # Four quants of an output lie together in both layouts, so they move as one 32-bit word (eight, for int4).
    words = _panels(weight.quants.contiguous().view(torch.int32), gated)
    words = torch.unflatten(words, 3, (groups, -1)).permute(0, 1, 3, 4, 2)  # [., ., groups, words, 16]
    scales = _panels(weight.scales, gated).transpose(2, 3)  # [., ., groups, 16]
    blocks = torch.empty(*words.shape[:3], _HALVES_PER_GROUP[form], dtype=torch.float16)
    end = words.shape[3] * PANEL  # in words
    torch.unflatten(blocks.view(torch.int32)[..., :end], 3, (-1, PANEL)).copy_(words)
    blocks[..., 2 * end : 2 * end + PANEL].copy_(scales)
    if weight.minimums is not None:
        blocks[..., 2 * end + PANEL :].copy_(_panels(weight.minimums, gated).transpose(2, 3))
    outputs = blocks.shape[0] * blocks.shape[1] * PANEL
    data = blocks.view(torch.uint8).flatten()
    return PackedWeight(form, outputs, inputs, rows, gated, data, _bias(bias, gated), activation_bits)


def pack_dense(weight: torch.Tensor, bias: torch.Tensor | None = None, *, gated: bool = False) -> PackedWeight:
    """Packs a bfloat16 or float32 weight [outputs, inputs] as it is."""
    rows, inputs = weight.shape
    _check(rows, inputs, gated)
    words = _panels(weight.contiguous().view(torch.int32), gated)  # a word is one float32, or two bfloat16
    lines = words.transpose(2, 3).contiguous()
    form: Form = "bfloat16" if weight.dtype == torch.bfloat16 else "float32"
    outputs = lines.shape[0] * lines.shape[1] * PANEL
    return PackedWeight(form, outputs, inputs, rows, gated, lines.view(torch.uint8).flatten(), _bias(bias, gated))


def _bias(bias: torch.Tensor | None, gated: bool) -> torch.Tensor | None:
    return None if bias is None else _panels(bias.float(), gated).flatten().contiguous()


def _check(rows: int, inputs: int, gated: bool) -> None:
    if inputs % GROUP or (gated and rows % (2 * PANEL)):
        raise ValueError(f"the CPU kernels need inputs in multiples of {GROUP}, not a weight [{rows}, {inputs}]")
