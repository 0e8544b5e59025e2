"""fp8 weights and activations (e4m3) by sgl_kernel: a scale per output row, and one per token found as it comes."""

from typing import Any

import torch

from model_runner.quantization.forms import DenseForm, FormFactory, WeightForm
from runtime.start_error import StartError

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
ALIGNED = 16
"""Kernels read 16 values at once."""


class Fp8Form:
    """`inputs @ weight.T` in fp8 with float32 sums. Each token has its own scale, so a product does not depend on the
    other rows of a batch."""

    def __init__(self, weight: torch.Tensor, library: Any) -> None:
        largest = weight.abs().amax(dim=1, keepdim=True).to(torch.float32)
        self.scales = (largest / LARGEST).clamp(min=1e-12)  # [out_features, 1]
        self.weight = (weight / self.scales).clamp(-LARGEST, LARGEST).to(FP8)  # [out_features, in_features]
        self._library = library

    @property
    def nbytes(self) -> int:
        return self.weight.numel() + 4 * self.scales.numel()

    def apply(self, inputs: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        flat = inputs.reshape(-1, inputs.shape[-1]).contiguous()
        narrow = torch.empty_like(flat, dtype=FP8)
        token_scales = torch.empty(flat.shape[0], 1, dtype=torch.float32, device=flat.device)
        self._library.sgl_per_token_quant_fp8(flat, narrow, token_scales)
        # The kernel wants the second matrix column by column, which is what a transposed view is.
        product: torch.Tensor = self._library.fp8_scaled_mm(
            narrow, self.weight.t(), token_scales, self.scales, inputs.dtype, bias
        )
        return product.view(*inputs.shape[:-1], product.shape[-1])


def fp8_forms(library: Any) -> FormFactory:
    """Makes fp8 forms; a weight whose sizes the kernels can't take stays dense."""

    def make(weight: torch.Tensor) -> WeightForm:
        if weight.shape[0] % ALIGNED or weight.shape[1] % ALIGNED:
            return DenseForm(weight)
        return Fp8Form(weight, library)

    return make


def import_fp8_kernels() -> Any:
    try:
        import sgl_kernel
    except (ImportError, OSError) as error:
        raise StartError(
            f"--quantization fp8 needs the package sglang-kernel ({error}); --quantization none runs without it"
        ) from None
    return sgl_kernel
