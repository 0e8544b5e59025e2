"""Safetensors checkpoints, sharded and single, and what is said of broken ones."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from model_runner.loading.errors import LoadError
from model_runner.loading.safetensors_source import INDEX_NAME, SafetensorsSource

FIRST = {"a.weight": torch.arange(24.0).view(4, 6), "a.bias": torch.arange(4.0)}
SECOND = {"b.weight": torch.ones(2, 3, dtype=torch.bfloat16), "step": torch.tensor(7)}


def write_sharded(folder: Path) -> None:
    save_file(FIRST, folder / "model-00001-of-00002.safetensors")
    save_file(SECOND, folder / "model-00002-of-00002.safetensors")
    names = dict.fromkeys(FIRST, "model-00001-of-00002.safetensors")
    names |= dict.fromkeys(SECOND, "model-00002-of-00002.safetensors")
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": names}))


def test_sharded(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    source = SafetensorsSource(tmp_path)
    assert set(source.names()) == {*FIRST, *SECOND}
    assert source.total_bytes == 24 * 4 + 4 * 4 + 6 * 2 + 8
    assert source.stored_bytes("b.weight") == 12
    assert source.shape("a.weight", ()) == (4, 6)
    torch.testing.assert_close(source.read("a.weight", (4, 6), (slice(1, 3), slice(2, 5))), FIRST["a.weight"][1:3, 2:5])
    assert source.read("step", (), ()).item() == 7
    source.close()
    assert not source.has("a.weight")


def test_one_file_by_its_own_path(tmp_path: Path) -> None:
    save_file(FIRST, tmp_path / "weights.safetensors")
    assert SafetensorsSource(tmp_path / "weights.safetensors").has("a.bias")
    assert SafetensorsSource(tmp_path).has("a.bias")


def test_missing_tensor(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    with pytest.raises(LoadError, match=r"no tensor c\.weight \(expected with shape \[3, 2\]\)"):
        SafetensorsSource(tmp_path).shape("c.weight", (3, 2))


def test_missing_shard(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(LoadError, match=r"names model-00002-of-00002\.safetensors, which is not in"):
        SafetensorsSource(tmp_path)


def test_truncated_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(FIRST, file)
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(LoadError, match=r"model\.safetensors is not a complete safetensors file"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": []}'])
def test_broken_index(text: str, tmp_path: Path) -> None:
    (tmp_path / INDEX_NAME).write_text(text)
    with pytest.raises(LoadError, match=r"is not an index|no \.safetensors"):
        SafetensorsSource(tmp_path)


def test_index_can_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    save_file(FIRST, tmp_path / "secret.safetensors")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": {"a.weight": "../secret.safetensors"}}))
    with pytest.raises(LoadError, match=r"names secret\.safetensors, which is not in"):
        SafetensorsSource(folder)


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"no \.safetensors files"):
        SafetensorsSource(tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 400), garbage=st.binary(min_size=1, max_size=24), cut=st.integers(0, 400))
def test_an_overwritten_header_is_read_or_refused(position: int, garbage: bytes, cut: int, tmp_path: Path) -> None:
    """Lengths, offsets, shapes, types and JSON: whatever they claim, nothing is allocated for it."""
    file = tmp_path / "model.safetensors"
    save_file(FIRST, file)
    data = file.read_bytes()
    file.write_bytes((data[:position] + garbage + data[position + len(garbage) :])[: len(data) - cut % 7])
    try:
        source = SafetensorsSource(tmp_path)
    except LoadError as error:
        assert "model.safetensors" in str(error)
        return
    assert source.total_bytes < 1 << 20
    source.close()
