"""Weights stored as int8 or fp8 values with scales beside them: per tensor, per output, per group of inputs, per block.

Covers compressed-tensors (int-quantized, float-quantized, naive-quantized), fp8 checkpoints with one scale per tensor,
and DeepSeek's fp8 blocks. Scales of activations and of the KV cache are left unread: activations stay wide here.
"""

import torch

from model_runner.loading.errors import LoadError
from model_runner.loading.quantized_source import bounds, weight_of_part
from model_runner.loading.source import Region, WeightSource

SCALE_PARTS = ("weight_scale", "weight_scale_inv")
UNREAD_PARTS = ("input_scale", "input_zero_point", "output_scale", "k_scale", "v_scale", "q_scale", "weight_g_idx")


class ScaledScheme:
    """`block`: rows and columns of a block, for checkpoints that say so; otherwise scales divide a dimension evenly."""

    def __init__(self, block: tuple[int, int] | None = None) -> None:
        self._block = block

    def logical_name(self, stored: str) -> str | None:
        return weight_of_part(stored, (*SCALE_PARTS, "weight_zero_point"), UNREAD_PARTS)

    def parts(self, name: str, base: WeightSource) -> list[str]:
        owner = name.removesuffix(".weight")
        if owner == name:
            return []
        beside = [f"{owner}.{part}" for part in SCALE_PARTS if base.has(f"{owner}.{part}")]
        zero = f"{owner}.weight_zero_point"
        return [name, *beside, *([zero] if base.has(zero) else [])] if beside else []

    def shape(self, name: str, base: WeightSource) -> tuple[int, ...]:
        return base.shape(name, ())

    def read(self, name: str, shape: tuple[int, ...], region: Region, base: WeightSource) -> torch.Tensor:
        if len(shape) != 2:
            raise LoadError(f"tensor {name} has shape {list(shape)}; scales are only read for matrices")
        owner = name.removesuffix(".weight")
        values = base.read(name, shape, region).float()
        zero = f"{owner}.weight_zero_point"
        if base.has(zero):
            values = values - self._spread(base, zero, shape, region)
        scale = next(f"{owner}.{part}" for part in SCALE_PARTS if base.has(f"{owner}.{part}"))
        return values * self._spread(base, scale, shape, region)

    def _spread(self, base: WeightSource, name: str, shape: tuple[int, ...], region: Region) -> torch.Tensor:
        """Scales over the region that they hold for, whatever their granularity."""
        stored_shape = base.shape(name, ())
        scales = base.read(name, stored_shape, tuple(slice(None) for _ in stored_shape)).float()
        if scales.numel() == 1:
            return scales.reshape(1, 1)
        if scales.dim() == 1 and scales.numel() == shape[0]:
            scales = scales[:, None]
        if scales.dim() != 2:
            raise LoadError(f"tensor {name} has shape {list(stored_shape)}, which does not scale {list(shape)}")
        index = []
        for dim in range(2):
            count, size = scales.shape[dim], shape[dim]
            entries = self._block[dim] if self._block is not None else size // max(count, 1)
            if entries == 0 or -(-size // entries) != count:
                raise LoadError(f"tensor {name} has shape {list(stored_shape)}, which does not scale {list(shape)}")
            start, stop = bounds(region[dim], size)
            index.append(torch.arange(start, stop) // entries)
        return scales[index[0]][:, index[1]]
