"""GGUF files: blocks are dequantised as they are read, names and row orders given back as the checkpoint had them."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from model_runner.kernels.packing import GroupedWeight
from model_runner.loading.errors import LoadError
from model_runner.loading.gguf_groups import grouped_rows
from model_runner.loading.gguf_names import (
    SUPPORTED,
    expert_tensor,
    gguf_name,
    is_rotated,
    is_shifted_gain,
)
from model_runner.loading.source import Region
from runtime.gguf_header import GgufTensor, read_gguf_header

PLAIN = ("F32", "F16", "BF16")
BLOCKS_OF_32 = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")
BLOCKS_OF_256 = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
READABLE = PLAIN + BLOCKS_OF_32 + BLOCKS_OF_256
BLOCKS_AT_ONCE = 8192
"""Blocks dequantised in one call: few enough that intermediate values stay in the processor's cache."""
DEFAULT_ALIGNMENT = 32


class StoredTensor:
    """One tensor's bytes in the mapped file, row by row."""

    def __init__(self, entry: GgufTensor, data: NDArray[numpy.uint8], start: int) -> None:
        kinds = {kind.value: kind for kind in GGMLQuantizationType}
        kind = kinds.get(entry.ggml_type)
        if kind is None or kind.name not in READABLE:
            named = str(entry.ggml_type) if kind is None else kind.name
            raise LoadError(f"tensor {entry.name} is stored as {named}; readable: {', '.join(READABLE)}")
        self.name = entry.name
        self.kind = kind
        self.shape = tuple(reversed(entry.shape))
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if not self.shape or self.shape[-1] % block or 0 in self.shape:
            raise LoadError(
                f"tensor {entry.name} has shape {list(self.shape)}, not made of {kind.name} blocks of {block}"
            )
        rows, row_bytes = math.prod(self.shape[:-1]), self.shape[-1] // block * block_bytes
        begin = start + entry.offset
        if begin + rows * row_bytes > len(data):
            raise LoadError(
                f"tensor {entry.name} {list(self.shape)} ends at byte {begin + rows * row_bytes}, the file at {len(data)}: "
                "it is truncated"
            )
        self.nbytes: int = rows * row_bytes
        self._rows = data[begin : begin + self.nbytes].reshape(rows, row_bytes)
        self._block_bytes = block_bytes

    def stored(self, rows: slice | NDArray[numpy.int64]) -> NDArray[numpy.uint8]:
        """Some rows as they lie in the file: [rows, bytes]."""
        return self._rows[rows]

    def floats(self, rows: slice | NDArray[numpy.int64]) -> NDArray[numpy.float32]:
        """Some rows (all leading dimensions are one here), dequantised: [rows, columns]."""
        stored = self.stored(rows)
        count, columns = len(stored), self.shape[-1]
        if self.kind.name == "F32":
            return stored.reshape(-1).view(numpy.float32).reshape(count, columns)
        if self.kind.name == "F16":
            return stored.reshape(-1).view(numpy.float16).astype(numpy.float32).reshape(count, columns)
        blocks = stored.reshape(-1, self._block_bytes)
        values = numpy.empty((len(blocks), count * columns // len(blocks)), dtype=numpy.float32)
        dequantise = getattr(gguf.quants, self.kind.name)
        # A scale in the file may be infinite or no number: the weights are then what the file says, without a warning.
        with numpy.errstate(invalid="ignore", over="ignore"):
            for start in range(0, len(blocks), BLOCKS_AT_ONCE):
                part = slice(start, start + BLOCKS_AT_ONCE)
                values[part] = dequantise.dequantize_blocks(blocks[part])
        return values.reshape(count, columns)


class GgufSource:
    """One GGUF file under the names of the safetensors checkpoint it was converted from."""

    def __init__(self, path: Path) -> None:
        try:
            header = read_gguf_header(path)
            data = numpy.memmap(path, dtype=numpy.uint8, mode="r").view(numpy.ndarray)
        except (ValueError, OSError) as error:
            raise LoadError(str(error)) from error
        self._path = path
        self._metadata = header.metadata
        self.architecture = str(header.metadata.get("general.architecture"))
        if self.architecture not in SUPPORTED:
            raise LoadError(
                f"{path}: GGUF architecture {self.architecture!r}; supported: {', '.join(sorted(SUPPORTED))}"
            )
        alignment = header.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise LoadError(f"{path}: general.alignment is {alignment!r}")
        start = -(-header.header_bytes // alignment) * alignment
        self._tensors = {entry.name: StoredTensor(entry, data, start) for entry in header.tensors}
        self._heads = self._count("attention.head_count", 1)
        self._kv_heads = self._count("attention.head_count_kv", self._heads)
        self._used: set[str] = set()

    def _count(self, key: str, default: int) -> int:
        value: Any = self._metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, list):
            value = value[0] if value else default
        if not isinstance(value, int) or value <= 0:
            raise LoadError(
                f"{self._path}: metadata key {self.architecture}.{key} is {value!r}, not a positive integer"
            )
        return value

    @property
    def total_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def names(self) -> Collection[str]:
        """The file's own names of tensors that nothing has read so far: there is no way back from every name."""
        return [name for name in self._tensors if name not in self._used]

    def has(self, name: str) -> bool:
        return self._find(name) is not None

    def vector(self, name: str) -> list[float]:
        """All values of a tensor by its own name in the file (rope factors)."""
        if name not in self._tensors:
            raise LoadError(f"the GGUF file has no tensor {name}")
        self._used.add(name)
        values: list[float] = self._tensors[name].floats(slice(None)).reshape(-1).tolist()
        return values

    def _find(self, name: str) -> tuple[StoredTensor, int | None] | None:
        """The file's tensor, and the expert's index if it holds a layer's experts."""
        stacked = expert_tensor(name)
        if stacked is not None:
            tensor = self._tensors.get(stacked[0])
            return None if tensor is None else (tensor, stacked[1])
        tensor = self._tensors.get(gguf_name(name, self.architecture) or "")
        return None if tensor is None else (tensor, None)

    def _get(self, name: str, expected: tuple[int, ...]) -> tuple[StoredTensor, int | None]:
        found = self._find(name)
        if found is None:
            known = expert_tensor(name)
            other = known[0] if known else gguf_name(name, self.architecture)
            raise LoadError(f"the GGUF file has no tensor {other} ({name}, expected with shape {list(expected)})")
        return found

    def shape(self, name: str, expected: tuple[int, ...]) -> tuple[int, ...]:
        tensor, expert = self._get(name, expected)
        if expert is None:
            return tensor.shape
        if len(tensor.shape) != 3 or expert >= tensor.shape[0]:
            raise LoadError(f"tensor {tensor.name} has shape {list(tensor.shape)}, which holds no expert {expert}")
        return tensor.shape[1:]

    def read(self, name: str, shape: tuple[int, ...], region: Region) -> torch.Tensor:
        tensor, expert = self._get(name, shape)
        self._used.add(tensor.name)
        if len(shape) == 1 and not is_rotated(name, self.architecture):
            values = torch.from_numpy(tensor.floats(slice(None)).reshape(-1)[region[0]].copy())
            return values - 1.0 if is_shifted_gain(name, self.architecture) else values
        rows = numpy.arange(shape[0])
        if is_rotated(name, self.architecture):
            rows = self._row_order(name, shape[0])
        if len(shape) == 1:
            return torch.from_numpy(tensor.floats(slice(None)).reshape(-1)[rows[region[0]]])
        wanted = rows[region[0]] + (expert or 0) * shape[0]
        straight = len(wanted) and wanted[-1] - wanted[0] == len(wanted) - 1 and not is_rotated(name, self.architecture)
        taken = tensor.floats(slice(wanted[0], wanted[-1] + 1) if straight else wanted)
        return torch.from_numpy(numpy.array(taken[:, region[1]], copy=True))

    def read_grouped(self, name: str, shape: tuple[int, int], rows: slice) -> GroupedWeight | None:
        tensor, expert = self._get(name, shape)
        if expert is not None or self.shape(name, shape) != shape:
            return None
        order = self._row_order(name, shape[0])[rows] if is_rotated(name, self.architecture) else rows
        found = grouped_rows(tensor.stored(order), tensor.kind)
        if found is not None:
            self._used.add(tensor.name)
        return found

    def _row_order(self, name: str, rows: int) -> NDArray[numpy.int64]:
        """Where each row of the checkpoint lies in the file: row (half, pair) of a head is kept at (pair, half)."""
        heads = self._heads if ".q_proj." in name else self._kv_heads
        if rows % (2 * heads):
            raise LoadError(f"tensor {name} has {rows} rows, which {heads} heads can't share")
        order: NDArray[numpy.int64] = numpy.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2)
        return order.reshape(rows)

    def stored_bytes(self, name: str) -> int:
        found = self._find(name)
        if found is None:
            return 0
        tensor, expert = found
        return tensor.nbytes // (1 if expert is None else tensor.shape[0])

    def close(self) -> None:
        self._tensors.clear()
