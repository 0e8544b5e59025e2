"""GGUF files: every readable type against the gguf package's own dequantisation, and files that lie."""

from pathlib import Path

import gguf
import numpy
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_runner.loading.errors import LoadError
from model_runner.loading.gguf_source import READABLE, GgufSource

ROWS, COLUMNS = 6, 512
NAME = "model.layers.0.mlp.up_proj.weight"
WHOLE = (slice(None), slice(None))


def write(path: Path, data: numpy.ndarray, kind: GGMLQuantizationType | None, architecture: str = "llama") -> None:
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_head_count(2)
    writer.add_tensor("blk.0.ffn_up.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_blocks(kind: GGMLQuantizationType) -> numpy.ndarray:
    """Bytes that are blocks of the type, whatever values they hold."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    generator = numpy.random.default_rng(kind.value)
    return generator.integers(0, 256, (ROWS, COLUMNS // block * block_bytes), dtype=numpy.uint8)


@pytest.mark.parametrize("name", [name for name in READABLE if name not in ("F32", "F16")])
@pytest.mark.filterwarnings("ignore:.*(overflow|invalid value).*:RuntimeWarning")
def test_every_type(name: str, tmp_path: Path) -> None:
    kind = GGMLQuantizationType[name]
    stored = random_blocks(kind)
    write(tmp_path / "a.gguf", stored, kind)
    wanted = torch.from_numpy(gguf.quants.dequantize(stored, kind).reshape(ROWS, COLUMNS))
    source = GgufSource(tmp_path / "a.gguf")
    assert source.shape(NAME, ()) == (ROWS, COLUMNS)
    for region in (WHOLE, (slice(2, 5), slice(None)), (slice(None), slice(100, 300))):
        torch.testing.assert_close(source.read(NAME, (ROWS, COLUMNS), region), wanted[region], equal_nan=True)
    assert not source.names()


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float16])
def test_plain_types(dtype: type, tmp_path: Path) -> None:
    values: numpy.ndarray = numpy.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(dtype)
    write(tmp_path / "a.gguf", values, None)
    source = GgufSource(tmp_path / "a.gguf")
    found = source.read(NAME, (ROWS, COLUMNS), (slice(1, 4), slice(7, 9)))
    torch.testing.assert_close(found, torch.from_numpy(values[1:4, 7:9].astype(numpy.float32)))


def test_unread_tensors_are_listed(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", numpy.zeros((2, 2), numpy.float32), None)
    assert list(GgufSource(tmp_path / "a.gguf").names()) == ["blk.0.ffn_up.weight"]


def test_types_that_can_not_be_read_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", random_blocks(GGMLQuantizationType.IQ2_XXS), GGMLQuantizationType.IQ2_XXS)
    with pytest.raises(LoadError, match=r"blk\.0\.ffn_up\.weight is stored as IQ2_XXS; readable: F32"):
        GgufSource(tmp_path / "a.gguf")


def test_architectures_without_a_name_map_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", numpy.zeros((2, 2), numpy.float32), None, "rwkv")
    with pytest.raises(LoadError, match=r"GGUF architecture 'rwkv'; supported: .*llama"):
        GgufSource(tmp_path / "a.gguf")


def test_truncated_file(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    write(file, numpy.zeros((ROWS, COLUMNS), numpy.float32), None)
    file.write_bytes(file.read_bytes()[:-4000])
    with pytest.raises(LoadError, match=r"blk\.0\.ffn_up\.weight \[6, 512\] ends at byte .*truncated"):
        GgufSource(file)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=6), kept=st.floats(0, 1))
def test_hostile_bytes_are_a_load_error_or_harmless(
    changes: list[tuple[float, int]], kept: float, tmp_path: Path
) -> None:
    sound = tmp_path / "sound.gguf"
    if not sound.exists():
        write(sound, random_blocks(GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
    data = bytearray(sound.read_bytes())
    for place, value in changes:
        data[int(place * (min(len(data), 400) - 1))] = value
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(data[: max(1, int(len(data) * (0.5 + kept)))])
    try:
        source = GgufSource(broken)
        shape = source.shape(NAME, ())
        if len(shape) == 2:
            assert source.read(NAME, shape, WHOLE).shape == shape
    except LoadError:
        pass
