"""The header of a GGUF file: metadata and tensor list, without the weights and without trusting a single count in it.

Source: ggml's docs/gguf.md, versions 2 and 3, little-endian. Every length is checked against the bytes that are left
before anything is allocated, so a truncated or hostile file is a ValueError with a sentence, never a crash or a hang.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_METADATA_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ARRAY_DEPTH = 4
MAX_DIMENSIONS = 8

_STRING = 8
_ARRAY = 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32 = _SCALARS[4]
_U64 = _SCALARS[10]


@dataclass(frozen=True)
class GgufTensor:
    """One entry of the tensor list. `shape` is in GGUF order (fastest first), `offset` relative to the data section."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True)
class GgufHeader:
    """`metadata` values are int, float, bool, str, or lists of them; `header_bytes` is where the tensor list ends."""

    version: int
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]
    header_bytes: int


class _Cursor:
    """Reads forward over the mapped file; running over its end is a ValueError."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.position

    def take(self, length: int, what: str) -> bytes:
        if length > self.left:
            raise ValueError(f"{what} would take {length} bytes, {self.left} are left")
        start = self.position
        self.position += length
        return self._data[start : self.position]

    def scalar(self, reader: struct.Struct, what: str) -> Any:
        return reader.unpack(self.take(reader.size, what))[0]

    def count(self, what: str, bytes_each: int, most: int | None = None) -> int:
        """A 64-bit count of things that take at least `bytes_each` bytes."""
        value: int = self.scalar(_U64, what)
        if value * bytes_each > self.left or (most is not None and value > most):
            raise ValueError(f"it claims {value} {what}, more than the file can hold")
        return value

    def string(self, what: str) -> str:
        length = self.count(f"bytes in {what}", 1)
        return self.take(length, what).decode("utf-8", "surrogateescape")

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string(f"the string of {key!r}")
        if kind == _ARRAY:
            return self._array(key, depth)
        if kind not in _SCALARS:
            raise ValueError(f"{key!r} has the unknown value type {kind}")
        return self.scalar(_SCALARS[kind], key)

    def _array(self, key: str, depth: int) -> list[Any]:
        if depth >= MAX_ARRAY_DEPTH:
            raise ValueError(f"{key!r} nests arrays more than {MAX_ARRAY_DEPTH} deep")
        kind: int = self.scalar(_U32, key)
        if kind in _SCALARS:
            reader = _SCALARS[kind]
            length = self.count(f"elements in {key!r}", reader.size)
            data = self.take(length * reader.size, key)
            return list(struct.unpack(f"<{length}{reader.format[1:]}", data))
        if kind == _STRING:
            return self._strings(key)
        # An array takes at least its type and count.
        length = self.count(f"elements in {key!r}", 12)
        return [self.value(kind, key, depth + 1) for _ in range(length)]

    def _strings(self, key: str) -> list[str]:
        """A vocabulary has hundreds of thousands of strings: one loop, without a call for each of their parts."""
        length = self.count(f"elements in {key!r}", _U64.size)
        data, position, end = self._data, self.position, len(self._data)
        read_length, strings = _U64.unpack_from, []
        for _ in range(length):
            start = position + _U64.size
            position = start + read_length(data, position)[0] if start <= end else start
            if position > end:
                raise ValueError(f"a string of {key!r} ends {position - end} bytes beyond the end of the file")
            strings.append(data[start:position].decode("utf-8", "surrogateescape"))
        self.position = position
        return strings


def read_gguf_header(path: str | Path) -> GgufHeader:
    """Metadata and tensors of the file; ValueError with one sentence if it is no sound GGUF file."""
    with Path(path).open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ValueError(f"{path} is empty") from None
        with data:
            try:
                return _read(_Cursor(data))
            except ValueError as error:
                raise ValueError(f"{path} is not a sound GGUF file: {error}") from None


def _read(cursor: _Cursor) -> GgufHeader:
    if cursor.take(4, "the magic number") != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    version: int = cursor.scalar(_U32, "the version")
    if version not in (2, 3):
        raise ValueError(f"version {version} is not read (2 and 3 are; a big-endian file looks like this, too)")
    # A tensor entry takes at least name length, dimension count, type and offset; a key its length, type and one byte.
    tensor_count = cursor.count("tensors", 24, MAX_TENSORS)
    entry_count = cursor.count("metadata entries", 13, MAX_METADATA_ENTRIES)
    metadata: dict[str, Any] = {}
    for _ in range(entry_count):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise ValueError(f"the metadata key {key!r} is there twice")
        metadata[key] = cursor.value(cursor.scalar(_U32, key), key)
    tensors = tuple(_tensor(cursor) for _ in range(tensor_count))
    return GgufHeader(version, metadata, tensors, cursor.position)


def _tensor(cursor: _Cursor) -> GgufTensor:
    name = cursor.string("a tensor name")
    dimensions: int = cursor.scalar(_U32, name)
    if dimensions > MAX_DIMENSIONS:
        raise ValueError(f"the tensor {name!r} claims {dimensions} dimensions")
    shape = tuple(int(cursor.scalar(_U64, name)) for _ in range(dimensions))
    ggml_type: int = cursor.scalar(_U32, name)
    offset: int = cursor.scalar(_U64, name)
    if offset > cursor.left:
        raise ValueError(f"the tensor {name!r} lies beyond the end of the file")
    return GgufTensor(name, shape, ggml_type, offset)
