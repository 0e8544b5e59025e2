"""flashinfer's kernels against the torch oracle at many shapes, launched and as graphs' plans."""

from typing import Any

import pytest
import torch

from model_runner.attention.interface import AttentionSpec, LayerKV
from model_runner.inputs import InputBuilder, PlanRows
from model_runner.step import StepInputs
from protocol.ids import pack_ids
from protocol.plan import BatchPlan, PageDelta
from tests.gpu.conftest import Place

PAGE_SIZE, PAGES, ROWS = 16, 512, 6
STEPS = ([130, 17, 1, 64, 0, 0], [1, 1, 1, 1, 0, 0], [1, 40, 1, 1, 300, 5], [1, 1, 1, 1, 1, 1], [16, 15, 1, 1, 2, 1])
SHAPES = [(4, 4, 64), (8, 2, 64), (8, 1, 128), (32, 8, 128), (8, 4, 256)]


class Steps:
    """Steps over rows that grow, and random tensors for them."""

    def __init__(self, place: Place) -> None:
        self.device = place.device
        self.builder = InputBuilder(ROWS, PAGE_SIZE, self.device)
        self.lengths = [0] * ROWS
        self.random = torch.Generator().manual_seed(11)

    def build(self, new_tokens: list[int]) -> StepInputs:
        rows = [row for row, count in enumerate(new_tokens) if count]
        counts = [new_tokens[row] for row in rows]
        self.builder.apply([PageDelta(row, 0, pack_ids(1 + row + ROWS * page for page in range(80))) for row in rows])
        plan = BatchPlan(
            step=0,
            slots=pack_ids(rows),
            new_tokens=pack_ids(counts),
            context=pack_ids(self.lengths[row] for row in rows),
            draws=pack_ids([1] * len(rows)),
            ids=pack_ids([0] * sum(counts)),
        )
        for row in rows:
            self.lengths[row] += new_tokens[row]
        return self.builder.build(PlanRows.parse(plan), torch.zeros(ROWS, dtype=torch.int64, device=self.device))

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.random).bfloat16().to(self.device)


@pytest.mark.parametrize("window", [None, 33])
@pytest.mark.parametrize("soft_cap", [None, 5.0])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
def test_against_the_oracle(
    place: Place, heads: int, kv_heads: int, dim: int, soft_cap: float | None, window: int | None
) -> None:
    compare(place, LayerKV(kv_heads, dim, dim), heads, sliding_window=window, logit_soft_cap=soft_cap)


@pytest.mark.parametrize("window", [None, 33])
def test_sinks_against_the_oracle(place: Place, window: int | None) -> None:
    sinks = torch.linspace(-2, 3, 8).to(place.device)
    compare(place, LayerKV(2, 64, 64), 8, sliding_window=window, sinks=sinks)


def compare(place: Place, layer: LayerKV, heads: int, **options: Any) -> None:
    layers, kv_heads, dim = [layer], layer.kv_heads, layer.key_dim
    spec = AttentionSpec(scale=dim**-0.5, v_head_dim=dim, **options)
    backends = [place.attention("flashinfer"), place.attention("torch")]
    for backend in backends:
        backend.make_pool(layers, PAGES, PAGE_SIZE)
    steps = Steps(place)
    backends[0].reserve_graphs(ROWS * 80)  # type: ignore[attr-defined]
    for number, new_tokens in enumerate(STEPS):
        inputs = steps.build(list(new_tokens))
        tensors = (
            steps.draw(inputs.tokens, heads, dim),
            steps.draw(inputs.tokens, kv_heads, dim),
            steps.draw(inputs.tokens, kv_heads, dim),
        )
        attended = []
        for backend in backends:
            if backend is backends[0] and inputs.max_query_tokens == 1 and number > 1:
                backend.prepare_graph(inputs)  # type: ignore[attr-defined]
            else:
                backend.prepare(inputs)
            attended.append(backend.attend(0, *tensors, spec).float())
        torch.testing.assert_close(attended[0], attended[1], rtol=0, atol=0.03)
