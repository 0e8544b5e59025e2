"""Reading through a prefix: shapes, shards, pieces, progress."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from model_runner.layers.parallel import SingleRank
from model_runner.loading import weights as weights_module
from model_runner.loading.dummy_source import DummySource
from model_runner.loading.errors import LoadError
from model_runner.loading.safetensors_source import SafetensorsSource
from model_runner.loading.source import WeightSource
from model_runner.loading.weights import LoadState, RowBlock, Weights
from model_runner.quantization.forms import DenseForm

TENSORS = {"x.a.weight": torch.arange(40.0).view(10, 4), "x.b.weight": -torch.arange(12.0).view(3, 4)}


def reader(source: WeightSource, seen: list[tuple[str, int, int]] | None = None) -> Weights:
    note = None if seen is None else lambda what, done, total: seen.append((what, done, total))
    return Weights(LoadState(source, torch.float32, torch.device("cpu"), SingleRank(), DenseForm, note))


@pytest.fixture
def source(tmp_path: Path) -> SafetensorsSource:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return SafetensorsSource(tmp_path)


def test_row_blocks_are_fused_in_pieces(source: SafetensorsSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module, "ELEMENTS_AT_ONCE", 12)
    seen: list[tuple[str, int, int]] = []
    weights = reader(source, seen).under("x")
    blocks = [RowBlock("a.weight", 10, slice(2, 9)), RowBlock("b.weight", 3)]
    made = weights.rows(blocks, 4, slice(1, 3))
    wanted = torch.cat((TENSORS["x.a.weight"][2:9, 1:3], TENSORS["x.b.weight"][:, 1:3]))
    torch.testing.assert_close(made, wanted)
    assert seen == [("loading weights", 160, 208), ("loading weights", 208, 208)]


def test_shapes_are_checked(source: SafetensorsSource) -> None:
    weights = reader(source).under("x")
    with pytest.raises(LoadError, match=r"tensor x\.a\.weight has shape \[10, 4\], but .* asks for \[10, 5\]"):
        weights.rows([RowBlock("a.weight", 10)], 5)


def test_random_weights_do_not_depend_on_order_or_shard() -> None:
    first, second = reader(DummySource()), reader(DummySource())
    whole = first.rows([RowBlock("p.weight", 64)], 32)
    second.rows([RowBlock("other.weight", 8)], 8)
    torch.testing.assert_close(second.rows([RowBlock("p.weight", 64, slice(16, 40))], 32), whole[16:40])
    assert abs(whole.std().item() * 32**0.5 - 1) < 0.1
    gain = first.tensor("p.norm.weight", (4096,))
    assert abs(gain.mean().item() - 1) < 0.01 and 0.01 < gain.std().item() < 0.03
