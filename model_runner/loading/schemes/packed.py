"""Compressed-tensors' pack-quantized weights: signed 4- or 8-bit integers packed along inputs, group scales."""

import torch

from model_runner.loading.errors import LoadError
from model_runner.loading.quantized_source import bounds, read_part, unpack_words, weight_of_part
from model_runner.loading.schemes.scaled import UNREAD_PARTS
from model_runner.loading.source import Region, WeightSource

PARTS = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")


class PackedScheme:
    def __init__(self, bits: int) -> None:
        self._bits = bits

    def logical_name(self, stored: str) -> str | None:
        return weight_of_part(stored, PARTS, UNREAD_PARTS)

    def parts(self, name: str, base: WeightSource) -> list[str]:
        owner = name.removesuffix(".weight")
        if owner == name or not base.has(f"{owner}.weight_packed"):
            return []
        return [f"{owner}.{part}" for part in PARTS if base.has(f"{owner}.{part}")]

    def shape(self, name: str, base: WeightSource) -> tuple[int, ...]:
        stored = read_part(base, f"{name}_shape", (2,))
        return int(stored[0]), int(stored[1])

    def read(self, name: str, shape: tuple[int, ...], region: Region, base: WeightSource) -> torch.Tensor:
        outputs, inputs = shape
        per_word = 32 // self._bits
        start, stop = bounds(region[0], outputs)
        rows = slice(start, stop)
        words = read_part(base, f"{name}_packed", (outputs, -(-inputs // per_word)), (rows, slice(None)))
        values = unpack_words(words, self._bits, 1)[:, region[1]].float()
        stored = base.shape(f"{name}_scale", ())
        groups = stored[1] if len(stored) == 2 else 1
        if groups == 0 or inputs % groups:
            raise LoadError(f"tensor {name}_scale has shape {list(stored)}, which {inputs} inputs can't share")
        group_of = (torch.arange(inputs) // (inputs // groups))[region[1]]
        if base.has(f"{name}_g_idx"):
            group_of = read_part(base, f"{name}_g_idx", (inputs,)).long()[region[1]]
            if len(group_of) and not 0 <= int(group_of.min()) <= int(group_of.max()) < groups:
                raise LoadError(f"tensor {name}_g_idx names groups outside the {groups} that have scales")
        scales = read_part(base, f"{name}_scale", (outputs, groups), (rows, slice(None))).float()
        half = 1 << (self._bits - 1)
        if base.has(f"{name}_zero_point"):
            first, last = start // per_word, -(-stop // per_word)
            packed = read_part(
                base, f"{name}_zero_point", (-(-outputs // per_word), groups), (slice(first, last), slice(None))
            )
            skipped = start - first * per_word
            zeros = unpack_words(packed, self._bits, 0)[skipped : skipped + stop - start]
            return (values - zeros[:, group_of]) * scales[:, group_of]
        return (values - half) * scales[:, group_of]
