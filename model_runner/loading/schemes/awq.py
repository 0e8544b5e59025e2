"""AWQ checkpoints (AutoAWQ, version gemm): outputs packed along columns in an interleaved order.

Weight [o, i] is `scales[g, o] * (q[i, o] - zeros[g, o])` with g = i // group_size. Nibble n of a word holds output
ORDER[n] of its eight.
"""

import torch

from model_runner.loading.errors import LoadError
from model_runner.loading.quantized_source import bounds, read_part, unpack_words, weight_of_part
from model_runner.loading.source import Region, WeightSource

PARTS = ("qweight", "qzeros", "scales")
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
NIBBLE_OF_OUTPUT = tuple(ORDER.index(output) for output in range(8))


class AwqScheme:
    def logical_name(self, stored: str) -> str | None:
        return weight_of_part(stored, PARTS)

    def parts(self, name: str, base: WeightSource) -> list[str]:
        owner = name.removesuffix(".weight")
        return [f"{owner}.{part}" for part in PARTS] if owner != name and base.has(f"{owner}.qweight") else []

    def shape(self, name: str, base: WeightSource) -> tuple[int, ...]:
        owner = name.removesuffix(".weight")
        found = base.shape(f"{owner}.qweight", ())
        if len(found) != 2:
            raise LoadError(f"tensor {owner}.qweight has shape {list(found)}, not two dimensions")
        return found[1] * 8, found[0]

    def read(self, name: str, shape: tuple[int, ...], region: Region, base: WeightSource) -> torch.Tensor:
        owner = name.removesuffix(".weight")
        outputs, inputs = shape
        start, stop = bounds(region[0], outputs)
        first, last = bounds(region[1], inputs)
        words = slice(start // 8, -(-stop // 8))
        cut = slice(start - words.start * 8, stop - words.start * 8)
        scale_shape = base.shape(f"{owner}.scales", ())
        groups = scale_shape[0] if scale_shape else 0
        if groups <= 0 or inputs % groups:
            raise LoadError(f"tensor {owner}.scales has shape {list(scale_shape)}, which {inputs} inputs can't share")
        group_of = torch.arange(first, last) // (inputs // groups)
        scales = read_part(base, f"{owner}.scales", (groups, outputs), (slice(None), slice(start, stop))).float()
        zeros = _unpack(read_part(base, f"{owner}.qzeros", (groups, outputs // 8), (slice(None), words)))[:, cut]
        packed = read_part(base, f"{owner}.qweight", (inputs, outputs // 8), (slice(first, last), words))
        return (scales[group_of] * (_unpack(packed)[:, cut] - zeros[group_of])).T


def _unpack(words: torch.Tensor) -> torch.Tensor:
    """[rows, words] to [rows, 8 * words] in output order."""
    nibbles = unpack_words(words, 4, 1).view(words.shape[0], words.shape[1], 8)
    return nibbles[:, :, list(NIBBLE_OF_OUTPUT)].flatten(1)
