"""Draws, fused operations and fp8 products on the device against the same on the CPU."""

import numpy
import pytest
import torch

from model_runner.layers.activations import gate_of
from model_runner.layers.norms import FusedRMSNorm, RMSNorm
from model_runner.layers.ops import TORCH_OPS, choose_ops
from model_runner.quantization.forms import DenseForm
from model_runner.quantization.fp8 import Fp8Form
from model_runner.sampling.pipeline import DrawBatch, SamplingPipeline
from protocol.plan import RowStart
from protocol.sampling import SamplingParameters
from tests.gpu.conftest import Place

ROWS, VOCABULARY = 8, 5000
SAMPLING = {
    "greedy": SamplingParameters(temperature=0.0),
    "whole vocabulary": SamplingParameters(temperature=0.9),
    "filters": SamplingParameters(temperature=0.9, top_k=50, top_p=0.9, min_p=0.02),
    "penalties and bias": SamplingParameters(repetition_penalty=1.3, presence_penalty=0.4, logit_bias={7: 3.0}),
}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("case", SAMPLING)
def test_a_draw_does_not_depend_on_the_device(place: Place, case: str) -> None:
    drawn = []
    for device in (place.device, torch.device("cpu")):
        pipeline = SamplingPipeline(ROWS, VOCABULARY, device)
        for slot in range(ROWS):
            pipeline.start(RowStart(slot, SAMPLING[case], 100 + slot, numpy.arange(9, dtype="<i4").tobytes()))
        batch = DrawBatch(numpy.arange(ROWS), numpy.arange(ROWS) + 9)
        drawn.append(pipeline.draw((random(ROWS, VOCABULARY) * 3).to(device), batch, None).ids.cpu().tolist())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("tokens", [1, 7, 256])
def test_fused_operations(place: Place, tokens: int) -> None:
    ops = choose_ops(place.device, torch.bfloat16)
    inputs, residual, gate_up = (random(tokens, 512).bfloat16().to(place.device) for _ in range(3))
    plain = RMSNorm((1 + 0.1 * random(512)).bfloat16().float().to(place.device), 1e-5)
    fused = FusedRMSNorm.of(plain, ops, torch.bfloat16)
    assert isinstance(fused, FusedRMSNorm) or not place.real
    torch.testing.assert_close(fused(inputs), plain(inputs), rtol=0.02, atol=0.02)
    wanted = plain.add(inputs, residual)
    torch.testing.assert_close(fused.add(inputs.clone(), residual.clone()), wanted, rtol=0.02, atol=0.02)
    for activation in ("silu", "gelu", "gelu_pytorch_tanh"):
        found = gate_of(activation, ops)(gate_up)
        torch.testing.assert_close(found, gate_of(activation, TORCH_OPS)(gate_up), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("tokens", [1, 16, 100])
def test_fp8_products(place: Place, tokens: int) -> None:
    weight, inputs = (random(*shape).bfloat16().to(place.device) for shape in ((512, 256), (tokens, 256)))
    wanted = DenseForm(weight).apply(inputs, None).float()
    found = Fp8Form(weight, place.sgl_kernel).apply(inputs, None).float()
    assert (found - wanted).pow(2).mean().sqrt() < 0.06 * wanted.pow(2).mean().sqrt()
