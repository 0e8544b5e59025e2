"""Packed products against the same arithmetic in plain torch."""

import ctypes

import pytest
import torch

from model_runner.kernels.decoder import linear_struct
from model_runner.kernels.packing import (
    GROUP,
    ActivationBits,
    GroupedWeight,
    PackedWeight,
    pack_dense,
    pack_grouped,
    quantise_int4,
    quantise_int8,
)


def multiply(library: ctypes.CDLL, weight: PackedWeight, inputs: torch.Tensor, threads: int = 2) -> torch.Tensor:
    engine = library.candor_create(threads)
    out = torch.empty(inputs.shape[0], weight.outputs)
    struct = linear_struct(weight)
    library.candor_linear(engine, ctypes.byref(struct), inputs.data_ptr(), inputs.shape[0], out.data_ptr())
    library.candor_destroy(engine)
    return out[:, : weight.rows]


def quantised(inputs: torch.Tensor, bits: int) -> torch.Tensor:
    """Inputs after the kernels' own rounding: integers per group of 32, dequantised again, in float64."""
    grouped = torch.unflatten(inputs, 1, (-1, GROUP))
    largest, largest_quant = grouped.abs().amax(2, keepdim=True), (1 << (bits - 1)) - 1
    quants = (grouped * torch.where(largest > 0, largest_quant / largest, 0.0)).round()
    return (quants.double() * (largest / largest_quant).double()).flatten(1)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


FORMS = ("int4", "int8", "int4 16 bits", "int8 16 bits", "bfloat16", "float32")


def packed(form: str, weight: torch.Tensor, bias: torch.Tensor | None = None) -> tuple[PackedWeight, torch.Tensor]:
    """The packed weight and the dense one that it stands for."""
    if form.startswith("int"):
        grouped = quantise_int4(weight) if form.startswith("int4") else quantise_int8(weight)
        return pack_grouped(grouped, bias, activation_bits=16 if form.endswith("16 bits") else 8), grouped.dense()
    held = weight.to(torch.bfloat16 if form == "bfloat16" else torch.float32)
    return pack_dense(held, bias), held.float()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (48, 96), (70, 576)])
def test_product_is_that_of_the_dense_weight(library: ctypes.CDLL, form: str, outputs: int, inputs: int) -> None:
    weight, dense = packed(form, random(outputs, inputs))
    x = random(7, inputs, seed=1)
    expected = (quantised(x, weight.activation_bits) if form.startswith("int") else x.double()) @ dense.double().T
    torch.testing.assert_close(multiply(library, weight, x).double(), expected, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_is_the_same_bits_in_any_company(library: ctypes.CDLL, form: str) -> None:
    weight, _ = packed(form, random(64, 160), random(64, seed=3))
    x = random(131, 160, seed=2)
    together = multiply(library, weight, x)
    for rows in (1, 2, 3, 5, 8, 97):
        apart = torch.cat(
            [multiply(library, weight, part.contiguous(), threads=1 + rows % 3) for part in torch.split(x, rows)]
        )
        assert torch.equal(apart, together)


@pytest.mark.parametrize("form", FORMS)
def test_avx512_code_computes_the_same_bits(avx2_library: ctypes.CDLL, avx512_library: ctypes.CDLL, form: str) -> None:
    weight, _ = packed(form, random(32, 544), random(32, seed=3))
    x = random(105, 544, seed=4) * torch.logspace(-4, 4, 544)
    for rows in (*range(1, 18), 105):
        part = x[:rows].contiguous()
        assert torch.equal(multiply(avx2_library, weight, part), multiply(avx512_library, weight, part))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("code", ["avx2_library", "avx512_library"])
def test_extreme_integers_do_not_saturate(code: str, bits: ActivationBits, request: pytest.FixtureRequest) -> None:
    library = request.getfixturevalue(code)
    quants = torch.full((16, 32), 255, dtype=torch.uint8)
    ones = torch.ones(16, 2, dtype=torch.float16)
    nibbles = GroupedWeight(quants, ones, torch.zeros(16, 2, dtype=torch.float16))
    four_bits = pack_grouped(nibbles, activation_bits=bits)
    eight_bits = pack_grouped(GroupedWeight(torch.full((16, 64), -127, dtype=torch.int8), ones), activation_bits=bits)
    x = torch.full((1, 64), -3.0)
    torch.testing.assert_close(multiply(library, four_bits, x), torch.full((1, 16), -3.0 * 15 * 64))
    torch.testing.assert_close(multiply(library, eight_bits, x), torch.full((1, 16), 3.0 * 127 * 64))


def test_zero_inputs_give_the_bias(library: ctypes.CDLL) -> None:
    bias = random(16)
    for form in FORMS:
        weight, _ = packed(form, random(16, 32), bias)
        assert torch.equal(multiply(library, weight, torch.zeros(3, 32)), bias.expand(3, 16))


def test_quantisation_keeps_within_half_a_step() -> None:
    weight = random(32, 64)
    step = torch.unflatten(weight, 1, (-1, GROUP)).abs().amax(2, keepdim=True) / 127
    error = torch.unflatten(quantise_int8(weight).dense() - weight, 1, (-1, GROUP)).abs()
    assert bool((error <= step * 0.57).all())  # scales are float16: half a step, and their rounding


def test_widths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 32"):
        pack_dense(torch.zeros(16, 40))
