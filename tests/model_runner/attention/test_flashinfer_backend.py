"""The flashinfer backend against the torch oracle, over a stand-in that binds every call to the real signatures."""

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from model_runner.attention.flashinfer_backend import FlashInferAttention
from model_runner.attention.interface import AttentionSpec, LayerKV
from model_runner.attention.torch_backend import TorchAttention
from model_runner.inputs import InputBuilder, PlanRows
from model_runner.step import StepInputs
from protocol.ids import pack_ids
from protocol.plan import BatchPlan, PageDelta
from runtime.start_error import StartError
from tests.model_runner.attention import flashinfer_standin

CPU = torch.device("cpu")
PAGE_SIZE, PAGES, DIM = 4, 64, 16
LAYERS = [LayerKV(2, DIM, DIM), LayerKV(2, DIM, DIM)]


class Pair:
    """Both backends over the same steps."""

    def __init__(self, heads: int = 4) -> None:
        self.heads = heads
        self.ours = FlashInferAttention(CPU, torch.bfloat16, library=flashinfer_standin)
        self.oracle = TorchAttention(CPU, torch.bfloat16)
        for backend in (self.ours, self.oracle):
            backend.bytes_per_page(LAYERS, PAGE_SIZE)
            backend.make_pool(LAYERS, PAGES, PAGE_SIZE)
        self.inputs = InputBuilder(8, PAGE_SIZE, CPU)
        self.lengths = [0] * 8
        self.random = torch.Generator().manual_seed(3)

    def feed(self, new_tokens: Sequence[int]) -> StepInputs:
        """A step of the first rows, by how many tokens each."""
        rows = [row for row, count in enumerate(new_tokens) if count]
        # Row r's pages are far from each other, and no other row's.
        deltas = [PageDelta(row, 0, pack_ids(1 + row + 8 * page for page in range(7))) for row in rows]
        self.inputs.apply(deltas)
        counts = [new_tokens[row] for row in rows]
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
        return self.inputs.build(PlanRows.parse(plan), torch.zeros(8, dtype=torch.int64))

    def tensors(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        def draw(heads: int) -> torch.Tensor:
            return torch.randn(tokens, heads, DIM, generator=self.random).bfloat16()

        return draw(self.heads), draw(2), draw(2)

    def compare(self, inputs: StepInputs, *specs: AttentionSpec) -> None:
        for backend in (self.ours, self.oracle):
            backend.prepare(inputs)
        for layer, spec in enumerate(specs):
            query, key, value = self.tensors(inputs.tokens)
            attended, wanted = (backend.attend(layer, query, key, value, spec) for backend in (self.ours, self.oracle))
            torch.testing.assert_close(attended.float(), wanted.float(), rtol=0, atol=0.02)


PLAIN = AttentionSpec(scale=DIM**-0.5, v_head_dim=DIM)
SPECS = {
    "plain": PLAIN,
    "window": AttentionSpec(scale=0.3, v_head_dim=DIM, sliding_window=3),
    "soft-cap": AttentionSpec(scale=1.0, v_head_dim=DIM, logit_soft_cap=2.0),
    "both": AttentionSpec(scale=1.0, v_head_dim=DIM, sliding_window=5, logit_soft_cap=3.0),
    "not-causal": AttentionSpec(scale=DIM**-0.5, v_head_dim=DIM, causal=False),
}


@pytest.mark.parametrize("heads", [2, 4, 8])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_it_attends_as_the_oracle_does(spec: AttentionSpec, heads: int) -> None:
    pair = Pair(heads)
    for step in ([9, 1, 4, 0], [1, 1, 1, 5], [1, 1, 1, 1], [3, 1, 7, 1], [1, 0, 1, 1]):
        pair.compare(pair.feed(step), spec, spec)


def test_layers_of_one_kind_share_a_plan_and_others_have_their_own() -> None:
    pair = Pair()
    pair.compare(pair.feed([5, 3]), PLAIN, PLAIN)
    (prefill,) = pair.ours._wrappers.values()
    assert prefill.plans == 1
    pair.compare(pair.feed([1, 1]), PLAIN, SPECS["window"])
    pair.compare(pair.feed([1, 1]), PLAIN, SPECS["window"])
    assert sorted(wrapper.plans for wrapper in pair.ours._wrappers.values()) == [1, 2, 2]


def test_a_graphs_plan_attends_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    pair.compare(pair.feed([5, 3, 2]), PLAIN, SPECS["window"])
    pair.ours.reserve_graphs(30)
    monkeypatch.setattr(pair.ours, "prepare", pair.ours.prepare_graph)
    for _ in range(3):
        pair.compare(pair.feed([1, 1, 1]), PLAIN, SPECS["window"])
    assert len(pair.ours._graphs._wrappers) == 2
    with pytest.raises(AssertionError, match="more pages than the graph's list holds"):
        pair.ours._graphs._pages.resize_(2)
        pair.compare(pair.feed([1, 1, 1]), PLAIN, SPECS["window"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FlashInferAttention(CPU, torch.float32, library=flashinfer_standin), "bfloat16 or float16"),
        (
            lambda: FlashInferAttention(CPU, torch.float16, library=flashinfer_standin).bytes_per_page(
                [LayerKV(1, 32, 0)], 16
            ),
            "different widths",
        ),
    ],
)
def test_what_it_cannot_do_is_told(call: Any, message: str) -> None:
    with pytest.raises(StartError, match=message):
        call()


def test_sinks_beside_a_soft_cap_are_refused() -> None:
    pair = Pair()
    spec = AttentionSpec(scale=1.0, v_head_dim=DIM, sinks=torch.zeros(4), logit_soft_cap=3.0)
    with pytest.raises(StartError, match="no attention sinks beside a soft cap"):
        pair.compare(pair.feed([2]), spec)


@pytest.mark.parametrize("window", [None, 3])
def test_sinks(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(4)
    spec = AttentionSpec(scale=0.5, v_head_dim=DIM, sliding_window=window, sinks=torch.tensor([0.0, 2.0, -3.0, 1.0]))
    for step in ([9, 1, 4, 0], [1, 1, 1, 5], [1, 1, 1, 1]):
        pair.compare(pair.feed(step), spec, PLAIN)
    pair.ours.reserve_graphs(40)
    monkeypatch.setattr(pair.ours, "prepare", pair.ours.prepare_graph)
    for _ in range(2):
        pair.compare(pair.feed([1, 1, 1]), spec, PLAIN)


def test_a_missing_library_is_a_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(StartError, match="needs the package flashinfer-python"):
        FlashInferAttention(CPU, torch.bfloat16)
