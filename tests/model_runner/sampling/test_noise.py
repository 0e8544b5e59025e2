"""The hash behind the draws: reproducible, uniform, uncorrelated."""

import numpy
import pytest
import torch

from model_runner.sampling.noise import draw_keys, gumbel_noise, uniforms


def keys(seeds: list[int], positions: list[int]) -> torch.Tensor:
    return torch.from_numpy(draw_keys(numpy.array(seeds, dtype=numpy.uint64), numpy.array(positions)))


def test_known_values_never_change() -> None:
    """A resumed request may continue in another version of the server."""
    noise = uniforms(keys([0, 1, 2**63 + 5], [0, 1, 4000]), torch.tensor([0, 1, 49151], dtype=torch.int32))
    expected = [
        [0.21810239553451538, 0.3681629002094269, 0.9309985637664795],
        [0.8279402256011963, 0.8092171549797058, 0.2550531327724457],
        [0.6438466310501099, 0.8691800236701965, 0.8621010184288025],
    ]
    torch.testing.assert_close(noise, torch.tensor(expected), rtol=0, atol=0)


def test_a_draw_is_the_same_in_any_batch() -> None:
    ids = torch.arange(1000, dtype=torch.int32)
    batch = gumbel_noise(keys([3, 9, 3], [7, 7, 8]), ids)
    alone = gumbel_noise(keys([9], [7]), ids)
    some = gumbel_noise(keys([9], [7]), torch.tensor([[999, 5]], dtype=torch.int32))
    assert torch.equal(batch[1], alone[0])
    assert torch.equal(some[0], alone[0, [999, 5]])
    assert not torch.equal(batch[0], batch[2])


@pytest.mark.parametrize("axis", ["ids", "positions", "seeds"])
def test_uniform_along_each_axis(axis: str) -> None:
    count = 1 << 16
    if axis == "ids":
        values = uniforms(keys([1], [1]), torch.arange(count, dtype=torch.int32))[0]
    else:
        numbers, one = list(range(count)), [1] * count
        pair = (one, numbers) if axis == "positions" else (numbers, one)
        values = uniforms(keys(*pair), torch.tensor([17], dtype=torch.int32))[:, 0]
    counts = torch.histc(values, bins=256, min=0.0, max=1.0)
    chi_square = float(((counts - count / 256) ** 2 / (count / 256)).sum())
    # 255 degrees of freedom: mean 255, standard deviation 22.6.
    assert 165 < chi_square < 345
    centred = values - 0.5
    for lag in (1, 2, 64):
        correlation = float((centred[lag:] * centred[:-lag]).mean() * 12)
        assert abs(correlation) < 5 / count**0.5


def test_neighbouring_draws_are_uncorrelated() -> None:
    ids = torch.arange(1 << 15, dtype=torch.int32)
    noise = uniforms(keys([5, 6, 5, 6], [10, 10, 11, 11]), ids).double()
    correlation = torch.corrcoef(noise) - torch.eye(4)
    assert float(correlation.abs().max()) < 5 / len(ids) ** 0.5


def test_the_tail_of_the_noise_is_gumbels() -> None:
    """P(noise > x) = 1 - exp(-exp(-x)); large values decide draws of unlikely ids."""
    count = 1 << 22
    noise = gumbel_noise(keys(list(range(64)), [3] * 64), torch.arange(count // 64, dtype=torch.int32))
    assert torch.isfinite(noise).all()
    for threshold in (0.0, 4.0, 8.0, 11.0):
        expected = count * -numpy.expm1(-numpy.exp(-threshold))
        seen = int((noise > threshold).sum())
        assert abs(seen - expected) < 5 * expected**0.5
