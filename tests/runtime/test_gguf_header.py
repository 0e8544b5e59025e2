"""GGUF headers: what is read from sound ones, and that no hostile one crashes, hangs or takes memory."""

import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.gguf_header import read_gguf_header
from tests.runtime.gguf_writer import header, text, value

SOUND = header(
    {
        "general.architecture": "llama",
        "n": 7,
        "f": 0.5,
        "on": True,
        "list": [1, 2, 3],
        "words": ["a", "bc"],
        "nested": [[1], [2]],
    },
    {"output.weight": (4, 2)},
)


def write(folder: Path, data: bytes) -> Path:
    path = folder / "m.gguf"
    path.write_bytes(data)
    return path


def test_values_and_tensors_of_a_sound_header(tmp_path: Path) -> None:
    found = read_gguf_header(write(tmp_path, SOUND + b"weights"))
    assert found.metadata == {
        "general.architecture": "llama",
        "n": 7,
        "f": 0.5,
        "on": True,
        "list": [1, 2, 3],
        "words": ["a", "bc"],
        "nested": [[1], [2]],
    }
    assert [(tensor.name, tensor.shape) for tensor in found.tensors] == [("output.weight", (4, 2))]
    assert found.header_bytes == len(SOUND)


HOSTILE = {
    "empty": b"",
    "other magic": b"GGML" + SOUND[4:],
    "version 1": SOUND[:4] + struct.pack("<I", 1) + SOUND[8:],
    "big-endian": SOUND[:4] + struct.pack(">I", 3) + SOUND[8:],
    "too many tensors": SOUND[:8] + struct.pack("<Q", 1 << 63) + SOUND[16:],
    "too many keys": SOUND[:16] + struct.pack("<Q", (1 << 64) - 1) + SOUND[24:],
    "endless key": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + b"key" * 20,
    "endless array": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 4, 1 << 61),
    "endless strings": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 61),
    "unknown type": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IQ", 99, 0),
    "deep arrays": b"GGUF"
    + struct.pack("<IQQ", 3, 0, 1)
    + text("k")
    + struct.pack("<I", 9)
    + struct.pack("<IQ", 9, 1) * 9999,
    "the same key twice": b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (text("key") + value(1)) + bytes(64),
    "many dimensions": b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t") + struct.pack("<I", 1 << 31) + bytes(64),
    "tensor beyond the end": b"GGUF"
    + struct.pack("<IQQ", 3, 1, 0)
    + text("t")
    + struct.pack("<IQIQ", 1, 4, 0, 1 << 60),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_one_sentence(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, HOSTILE[name])
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"m\.gguf") as caught:
            read_gguf_header(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", range(0, len(SOUND), 7))
def test_every_truncation_is_found(length: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"m\.gguf"):
        read_gguf_header(write(tmp_path, SOUND[:length]))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(4, len(SOUND) - 1), garbage=st.binary(min_size=1, max_size=16))
def test_overwritten_bytes_are_read_or_refused(position: int, garbage: bytes, tmp_path: Path) -> None:
    data = SOUND[:position] + garbage + SOUND[position + len(garbage) :]
    try:
        read_gguf_header(write(tmp_path, data))
    except ValueError as error:
        assert "not a sound GGUF file" in str(error)
