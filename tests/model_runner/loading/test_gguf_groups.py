"""Blocks kept as groups stand for the values that the gguf package reads out of them."""

import gguf
import numpy
import pytest
import torch
from gguf import GGMLQuantizationType

from model_runner.loading.gguf_groups import GROUPED, grouped_rows


@pytest.mark.parametrize("kind", GROUPED)
def test_groups_are_the_dequantised_weight(kind: GGMLQuantizationType) -> None:
    block_bytes, _ = GROUPED[kind]
    stored = numpy.random.default_rng(0).integers(0, 256, (24, 3 * block_bytes), dtype=numpy.uint8)
    # Scales of random bits would be NaN or infinite now and then: small positive float16 numbers instead.
    halves = {GGMLQuantizationType.Q4_1: 2, GGMLQuantizationType.Q4_K: 2}.get(kind, 1)
    for start in range(0, stored.shape[1], block_bytes):
        for half in range(halves):
            stored[:, start + 2 * half + 1] = 0x2C
    expected = torch.from_numpy(gguf.quants.dequantize(stored, kind))
    found = grouped_rows(stored, kind)
    assert found is not None
    tolerance = 2**-10 if kind == GGMLQuantizationType.Q4_K else 1e-6
    torch.testing.assert_close(found.dense(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def test_other_types_are_left_to_dequantisation() -> None:
    assert grouped_rows(numpy.zeros((2, 24), dtype=numpy.uint8), GGMLQuantizationType.Q5_1) is None
