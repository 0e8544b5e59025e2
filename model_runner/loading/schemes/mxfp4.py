"""MXFP4 as GPT-OSS stores its experts: 4-bit floats in blocks of 32 along inputs, one power-of-two scale per block.

Source: OCP Microscaling Formats 1.0. The low nibble of a byte is the earlier value. The stored experts are
[experts, outputs, blocks, 16]; the architecture's own weight is their transpose [experts, inputs, outputs].
"""

import torch

from model_runner.loading.errors import LoadError
from model_runner.loading.quantized_source import bounds, read_part
from model_runner.loading.source import Region, WeightSource

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BLOCK = 32
EXPONENT_BIAS = 127


class Mxfp4Scheme:
    def logical_name(self, stored: str) -> str | None:
        return stored.removesuffix("_blocks").removesuffix("_scales")

    def parts(self, name: str, base: WeightSource) -> list[str]:
        return [f"{name}_blocks", f"{name}_scales"] if base.has(f"{name}_blocks") else []

    def shape(self, name: str, base: WeightSource) -> tuple[int, ...]:
        stored = base.shape(f"{name}_blocks", ())
        if len(stored) != 4 or stored[3] != BLOCK // 2:
            raise LoadError(
                f"tensor {name}_blocks has shape {list(stored)}, not [experts, outputs, blocks, {BLOCK // 2}]"
            )
        return stored[0], stored[2] * BLOCK, stored[1]

    def read(self, name: str, shape: tuple[int, ...], region: Region, base: WeightSource) -> torch.Tensor:
        experts, inputs, outputs = shape
        first, last = bounds(region[1], inputs)
        blocks = slice(first // BLOCK, -(-last // BLOCK))
        stored = (experts, outputs, inputs // BLOCK)
        wanted = (region[0], region[2], blocks)
        packed = read_part(base, f"{name}_blocks", (*stored, BLOCK // 2), (*wanted, slice(None)))
        scales = read_part(base, f"{name}_scales", stored, wanted)
        table = torch.tensor(VALUES)
        nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)  # [experts, outputs, blocks, 32]
        values = torch.ldexp(table[nibbles.long()], (scales.to(torch.int32) - EXPONENT_BIAS)[..., None])
        begin = first - blocks.start * BLOCK
        return values.flatten(-2)[:, :, begin : begin + last - first].transpose(1, 2)
