"""GPTQ checkpoints (AutoGPTQ, GPTQModel): inputs packed along rows, one scale and zero per group of inputs.

Weight [o, i] is `scales[g, o] * (q[i, o] - zeros[g, o])` with g = g_idx[i]; format "gptq" stores zeros less one.
"""

import torch

from model_runner.loading.errors import LoadError
from model_runner.loading.quantized_source import bounds, read_part, unpack_words, weight_of_part
from model_runner.loading.source import Region, WeightSource

PARTS = ("qweight", "qzeros", "scales", "g_idx")


class GptqScheme:
    def __init__(self, bits: int, stored_zero_offset: int) -> None:
        self._bits = bits
        self._offset = stored_zero_offset

    def logical_name(self, stored: str) -> str | None:
        return weight_of_part(stored, PARTS)

    def parts(self, name: str, base: WeightSource) -> list[str]:
        owner = name.removesuffix(".weight")
        if owner == name or not base.has(f"{owner}.qweight"):
            return []
        return [f"{owner}.{part}" for part in PARTS if base.has(f"{owner}.{part}")]

    def shape(self, name: str, base: WeightSource) -> tuple[int, ...]:
        packed, outputs = _two(base, f"{name.removesuffix('.weight')}.qweight")
        return outputs, packed * 32 // self._bits

    def read(self, name: str, shape: tuple[int, ...], region: Region, base: WeightSource) -> torch.Tensor:
        owner = name.removesuffix(".weight")
        outputs, inputs = shape
        per_word = 32 // self._bits
        start, stop = bounds(region[0], outputs)
        groups = _two(base, f"{owner}.scales")[0]
        # Zeros are packed along outputs: whole words are read, the rest is cut off.
        first_word, last_word = start // per_word, -(-stop // per_word)
        words = read_part(
            base, f"{owner}.qzeros", (groups, outputs // per_word), (slice(None), slice(first_word, last_word))
        )
        skipped = start - first_word * per_word
        zeros = unpack_words(words, self._bits, 1)[:, skipped : skipped + stop - start] + self._offset
        # A stored zero of all ones stands for 2**bits, which wraps round to 0.
        zeros &= (1 << self._bits) - 1
        columns = (slice(None), slice(start, stop))
        scales = read_part(base, f"{owner}.scales", (groups, outputs), columns).float()
        packed = read_part(base, f"{owner}.qweight", (inputs // per_word, outputs), columns)
        values = unpack_words(packed, self._bits, 0)
        group_of = self._group_of_input(owner, inputs, groups, base)[region[1]]
        return (scales[group_of] * (values[region[1]] - zeros[group_of])).T

    def _group_of_input(self, owner: str, inputs: int, groups: int, base: WeightSource) -> torch.Tensor:
        if not base.has(f"{owner}.g_idx"):
            return torch.arange(inputs) // -(-inputs // groups)
        group_of = read_part(base, f"{owner}.g_idx", (inputs,)).long()
        if len(group_of) and not 0 <= int(group_of.min()) <= int(group_of.max()) < groups:
            raise LoadError(f"tensor {owner}.g_idx names groups outside the {groups} that have scales")
        return group_of


def _two(base: WeightSource, name: str) -> tuple[int, int]:
    shape = base.shape(name, ())
    if len(shape) != 2:
        raise LoadError(f"tensor {name} has shape {list(shape)}, not two dimensions")
    return shape[0], shape[1]
