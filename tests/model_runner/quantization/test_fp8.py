"""fp8 forms over a stand-in bound to sgl_kernel's signatures, against the dense product."""

import sys
from typing import Any

import pytest
import torch

from model_runner.quantization.choose import choose_form
from model_runner.quantization.forms import DenseForm
from model_runner.quantization.fp8 import FP8, LARGEST, Fp8Form, fp8_forms
from runtime.start_error import StartError
from tests.model_runner.signatures.binding import bind, read_signatures

SIGNATURES = read_signatures("sgl_kernel")


class SglKernel:
    """What the two kernels compute, and what they insist on."""

    @staticmethod
    def sgl_per_token_quant_fp8(*arguments: Any, **keywords: Any) -> None:
        call = bind(SIGNATURES, "sgl_per_token_quant_fp8", *arguments, **keywords)
        assert call["input"].is_contiguous() and call["output_q"].dtype == FP8
        scales = call["input"].float().abs().amax(dim=1, keepdim=True) / LARGEST
        call["output_s"].copy_(scales)
        call["output_q"].copy_((call["input"].float() / scales).to(FP8))

    @staticmethod
    def fp8_scaled_mm(*arguments: Any, **keywords: Any) -> torch.Tensor:
        call = bind(SIGNATURES, "fp8_scaled_mm", *arguments, **keywords)
        left, right = call["mat_a"], call["mat_b"]
        assert left.is_contiguous() and right.t().is_contiguous(), "row by row times column by column"
        assert call["scales_a"].numel() == left.shape[0] and call["scales_b"].numel() == right.shape[1]
        assert left.shape[1] % 16 == 0 and right.shape[1] % 16 == 0
        product = left.float() @ right.float() * call["scales_a"] * call["scales_b"].view(1, -1)
        bias = call.get("bias")
        narrow: torch.Tensor = (product if bias is None else product + bias.float()).to(call["out_dtype"])
        return narrow


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def test_products_are_those_of_the_dense_weight_within_fp8() -> None:
    weight, inputs, bias = random(48, 64), random(2, 5, 64), random(48)
    form = Fp8Form(weight, SglKernel)
    for added in (None, bias):
        wanted = DenseForm(weight).apply(inputs, added).float()
        found = form.apply(inputs, added)
        assert found.shape == wanted.shape and found.dtype == torch.bfloat16
        # Two values of three mantissa bits each, 64 products: about 4% of a product's size.
        assert (found.float() - wanted).pow(2).mean().sqrt() < 0.06 * wanted.pow(2).mean().sqrt()
    assert form.nbytes == 48 * 64 + 4 * 48


def test_a_tokens_product_does_not_depend_on_its_neighbours() -> None:
    form = Fp8Form(random(32, 64), SglKernel)
    inputs = random(6, 64)
    together = form.apply(inputs * torch.tensor([1, 100, 1, 1, 1, 1], dtype=torch.bfloat16)[:, None], None)
    assert torch.equal(together[2:], form.apply(inputs[2:], None))


def test_a_row_of_zeros_stays_zero() -> None:
    weight = random(16, 32)
    weight[3] = 0
    assert Fp8Form(weight, SglKernel).apply(random(4, 32), None)[:, 3].abs().max() == 0


def test_an_fp8_checkpoint_with_a_scale_per_row_comes_back_as_it_was_stored() -> None:
    stored = (random(32, 64).float() / random(32, 64).float().abs().amax(dim=1, keepdim=True) * LARGEST).to(FP8)
    scales = torch.rand(32, 1, generator=torch.Generator().manual_seed(3)) / 100
    form = Fp8Form((stored.float() * scales).bfloat16(), SglKernel)
    assert torch.equal(form.weight.float(), stored.float())
    torch.testing.assert_close(form.scales, scales, rtol=2**-8, atol=0)


@pytest.mark.parametrize(("shape", "kind"), [((32, 64), Fp8Form), ((33, 64), DenseForm), ((32, 60), DenseForm)])
def test_sizes_that_the_kernels_cannot_take_stay_dense(shape: tuple[int, int], kind: type) -> None:
    assert type(fp8_forms(SglKernel)(random(*shape))) is kind


def test_a_missing_library_is_a_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sgl_kernel", None)
    with pytest.raises(StartError, match="needs the package sglang-kernel"):
        choose_form("fp8", "cuda")
