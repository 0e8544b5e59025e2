"""Experts in one grouped product give what they give one by one, and keep what only the device knows on the device."""

from typing import Any

import pytest
import torch

from model_runner.layers import experts as experts_module
from model_runner.layers.declarations import ClampedGate, ExpertsDeclaration, RoutingDeclaration
from model_runner.layers.experts import MixtureOfExperts
from model_runner.layers.grouped_experts import can_be_grouped
from model_runner.layers.parallel import SingleRank
from model_runner.loading.dummy_source import DummySource
from model_runner.loading.weights import LoadState, Weights
from model_runner.quantization.forms import DenseForm

HIDDEN, SIZE, EXPERTS = 32, 24, 6
ROUTING = RoutingDeclaration(EXPERTS, 2, "softmax", normalise=True, router_bias=False)
DECLARED = {
    "split": ExpertsDeclaration(ROUTING, SIZE, "silu", shared_intermediate_size=16),
    "stacked": ExpertsDeclaration(ROUTING, SIZE, "silu", layout="stacked", clamp=ClampedGate(7.0, 1.7)),
}


def state_of(device: str, dtype: torch.dtype, make_form: Any = DenseForm) -> LoadState:
    return LoadState(DummySource(), dtype, torch.device(device), SingleRank(), make_form)


def mixture(layout: str, grouped: bool, monkeypatch: pytest.MonkeyPatch, state: LoadState) -> MixtureOfExperts:
    monkeypatch.setattr(experts_module, "can_be_grouped", lambda state, widths: grouped)
    made = MixtureOfExperts(Weights(state), DECLARED[layout], HIDDEN)
    assert made.experts.waits is not grouped
    return made


@pytest.mark.parametrize("layout", DECLARED)
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_grouped_experts_are_experts_one_by_one(layout: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(tokens))
    grouped, apart = (
        mixture(layout, way, monkeypatch, state_of("cpu", torch.float32))(hidden) for way in (True, False)
    )
    assert apart.abs().max() > 1e-4
    torch.testing.assert_close(grouped, apart, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("layout", DECLARED)
def test_grouped_experts_wait_for_nothing(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device, where every read of a value raises."""
    hidden = torch.empty(5, HIDDEN, dtype=torch.bfloat16, device="meta")
    state = state_of("meta", torch.bfloat16)
    assert mixture(layout, True, monkeypatch, state)(hidden).shape == (5, HIDDEN)
    with pytest.raises((RuntimeError, NotImplementedError)):
        mixture(layout, False, monkeypatch, state_of("meta", torch.bfloat16))(hidden)


@pytest.mark.parametrize(
    ("changes", "capability", "widths", "wanted"),
    [
        ({}, (9, 0), (64, 96), True),
        ({}, (12, 0), (64, 96), True),
        ({}, (8, 9), (64, 96), False),
        ({}, (9, 0), (64, 92), False),
        ({"make_form": lambda weight: DenseForm(weight)}, (9, 0), (64, 96), False),
        ({"dtype": torch.float16}, (9, 0), (64, 96), False),
    ],
    ids=["hopper", "newer", "older", "odd width", "quantised", "other dtype"],
)
def test_where_there_is_a_kernel(
    changes: dict[str, Any],
    capability: tuple[int, int],
    widths: tuple[int, int],
    wanted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    state = state_of("cuda", **({"dtype": torch.bfloat16} | changes))
    assert can_be_grouped(state, widths) is wanted
    assert not can_be_grouped(state_of("cpu", torch.bfloat16), widths)
