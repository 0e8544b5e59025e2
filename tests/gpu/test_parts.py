"""Draws, fused operations, experts and fp8 products on the device against torch's own."""

import numpy
import pytest
import torch

from model_runner.layers.activations import gate_of
from model_runner.layers.grouped_experts import GROUPED_SINCE
from model_runner.layers.norms import FusedRMSNorm, RMSNorm
from model_runner.layers.ops import TORCH_OPS, choose_ops
from model_runner.layers.rotary import Rotary
from model_runner.quantization.forms import DenseForm
from model_runner.quantization.fp8 import Fp8Form
from model_runner.sampling.filters import Filters
from model_runner.sampling.pipeline import DrawBatch, SamplingPipeline
from model_runner.sampling.survivors import choose_survivors, flashinfer_survivors, sorted_survivors
from protocol.plan import RowStart
from protocol.sampling import SamplingParameters
from tests.gpu.conftest import Place
from tests.model_runner.layers.test_experts import DECLARED, HIDDEN, mixture, state_of

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


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [128, 64])
def test_rotation(place: Place, rotated: int, interleaved: bool) -> None:
    """Compared by products of queries and keys: kernels and torch leave the pairs in different places."""
    positions = torch.tensor([0, 3, 7, 1500, 2]).to(place.device)
    table = Rotary(torch.rand(rotated // 2).to(place.device), scale=1.1).table(positions)
    heads = random(5, 6, 128).bfloat16().to(place.device)
    found, wanted = (
        ops.rotate(heads.clone(), table, interleaved).float()
        for ops in (choose_ops(place.device, torch.bfloat16), TORCH_OPS)
    )
    for turned in (found, wanted):
        torch.testing.assert_close(turned[..., rotated:], heads[..., rotated:].float())
    products = [torch.einsum("qhd,kd->qhk", turned[:, :5], turned[:, 5]) for turned in (found, wanted)]
    torch.testing.assert_close(*products, rtol=0.03, atol=0.5)


def test_filters(place: Place) -> None:
    """Each row by itself, too: who survives does not depend on the batch."""
    survivors = choose_survivors(place.device)[0] if place.real else flashinfer_survivors(place.flashinfer)
    logits = (random(ROWS, VOCABULARY) * 3).to(place.device)
    columns = (
        [0.7] * ROWS,
        [0, 5, 50, 0, 1, 0, 4999, 0],
        [1, 1, 0.9, 0.95, 0.5, 0.2, 1, 0.99],
        [0, 0, 0, 0.01, 0, 0, 0.1, 0],
    )
    dtypes = (torch.float32, torch.int64, torch.float32, torch.float32)
    filters = Filters(*(torch.tensor(c, dtype=d, device=place.device) for c, d in zip(columns, dtypes, strict=True)))
    found = survivors(logits, filters)
    assert torch.equal(found, sorted_survivors(logits, filters))
    for row in range(ROWS):
        alone = torch.tensor([row], device=place.device)
        assert torch.equal(survivors(logits[alone], filters.select(alone))[0], found[row])


@pytest.mark.parametrize("layout", DECLARED)
@pytest.mark.parametrize("tokens", [1, 3, 200])
def test_grouped_experts(place: Place, layout: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if place.real and torch.cuda.get_device_capability(place.device) < GROUPED_SINCE:
        pytest.skip("no grouped products on this GPU")
    hidden = random(tokens, HIDDEN).bfloat16().to(place.device)
    found, wanted = (
        mixture(layout, grouped, monkeypatch, state_of(str(place.device), torch.bfloat16))(hidden)
        for grouped in (True, False)
    )
    # Biases are added to products already rounded in one of the two.
    difference = (found.float() - wanted.float()).pow(2).mean().sqrt()
    assert difference < 0.02 * wanted.float().pow(2).mean().sqrt()


@pytest.mark.parametrize("tokens", [1, 16, 100])
def test_fp8_products(place: Place, tokens: int) -> None:
    weight, inputs = (random(*shape).bfloat16().to(place.device) for shape in ((512, 256), (tokens, 256)))
    wanted = DenseForm(weight).apply(inputs, None).float()
    found = Fp8Form(weight, place.sgl_kernel).apply(inputs, None).float()
    assert (found - wanted).pow(2).mean().sqrt() < 0.06 * wanted.pow(2).mean().sqrt()
