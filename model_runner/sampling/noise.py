"""Random numbers without a generator: a hash of (seed, position, token id).

The same draw has the same noise alone or in any batch, in any row, on any device, before and after a crash. The hash
of a draw's key is splitmix64's finaliser; per token it is a 32-bit finaliser of two multiplications (constants found by
Chris Wellons' search, https://nullprogram.com/blog/2018/07/31/) with half of the key put in between its rounds, so that
two draws never share a shifted copy of one stream.
"""

import numpy
import torch
from numpy.typing import NDArray

KEY_STEP = numpy.uint64(0x9E3779B97F4A7C15)
KEY_FIRST = numpy.uint64(0xBF58476D1CE4E5B9)
KEY_SECOND = numpy.uint64(0x94D049BB133111EB)
ID_STEP = -1640531527  # 0x9E3779B9: 2**32 over the golden ratio
ID_FIRST = 0x7FEB352D
ID_SECOND = -2073254261  # 0x846CA68B

UNIFORM_SCALE = 2.0**-31
LARGEST_UNIFORM = 1.0 - 2.0**-24
"""float32 has no number between this and 1, whose noise would be -inf."""


def draw_keys(seeds: NDArray[numpy.uint64], positions: NDArray[numpy.int64]) -> NDArray[numpy.int32]:
    """Two words for each draw: [draws, 2]."""
    mixed = _finalise(_finalise(seeds + KEY_STEP) + positions.astype(numpy.uint64) * KEY_STEP)
    return mixed.view(numpy.int32).reshape(-1, 2)


def _finalise(words: NDArray[numpy.uint64]) -> NDArray[numpy.uint64]:
    words = (words ^ (words >> numpy.uint64(30))) * KEY_FIRST
    words = (words ^ (words >> numpy.uint64(27))) * KEY_SECOND
    return words ^ (words >> numpy.uint64(31))


def gumbel_noise(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float32 [draws, ids], of keys int32 [draws, 2] and token ids int32 [ids] or [draws, ids]."""
    return uniforms(keys, ids).neg_().log1p_().neg_().log_().neg_()


def uniforms(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in (0, 1), float32 [draws, ids].

    Largest noise comes from the smallest numbers, where float32 is fine-grained: 31 bits, spaced 2**-31 near zero.
    (Near one the spacing is 2**-24; there the noise is most negative, and no draw is decided by it.)
    """
    words = ids * ID_STEP + keys[:, :1]
    words ^= (words >> 16) & 0xFFFF  # torch shifts arithmetically; the mask makes it a logical shift
    words *= ID_FIRST
    words ^= keys[:, 1:]
    words ^= (words >> 15) & 0x1FFFF
    words *= ID_SECOND
    words ^= (words >> 16) & 0xFFFF
    words &= 0x7FFFFFFF
    return words.float().add_(0.5).mul_(UNIFORM_SCALE).clamp_(max=LARGEST_UNIFORM)
