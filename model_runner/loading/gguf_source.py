"""GGUF files: blocks are dequantised as they are read, names and row orders given back as the checkpoint had them."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
from gguf import GGMLQuantizationType

from model_runner.loading.errors import LoadError
from model_runner.loading.gguf_names import (
    SUPPORTED,
    expert_tensor,
    gguf_name,
    is_rotated,
    is_shifted_gain,
)
from model_runner.loading.source import Region

READABLE = {
    GGMLQuantizationType[name]
    for name in [
        "F32",
        "F16",
        "BF16",
        "Q8_0",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "IQ4_NL",
        "IQ4_XS",
        "MXFP4",
    ]
}


class GgufSource:
    """One GGUF file under the names of the safetensors checkpoint it was converted from."""

    def __init__(self, path: Path) -> None:
        try:
            self._reader: Any = gguf.GGUFReader(str(path))
        except (ValueError, OSError, IndexError, KeyError, OverflowError, UnicodeDecodeError, MemoryError) as error:
            raise LoadError(f"{path} is not a complete GGUF file: {error}") from error
        self._path = path
        self.architecture = str(self._field("general.architecture"))
        if self.architecture not in SUPPORTED:
            raise LoadError(
                f"{path}: GGUF architecture {self.architecture!r}; supported: {', '.join(sorted(SUPPORTED))}"
            )
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        for tensor in self._tensors.values():
            if tensor.tensor_type not in READABLE:
                readable = ", ".join(sorted(kind.name for kind in READABLE))
                raise LoadError(f"tensor {tensor.name} is {tensor.tensor_type.name}; readable: {readable}")
        self._heads = int(self._field("attention.head_count", 1))
        self._kv_heads = int(self._field("attention.head_count_kv", self._heads))
        self._used: set[str] = set()

    def _field(self, key: str, default: Any = None) -> Any:
        full = key if key.startswith("general.") else f"{self.architecture}.{key}"
        field = self._reader.get_field(full)
        if field is None:
            if default is None:
                raise LoadError(f"{self._path} has no metadata key {full}")
            return default
        value = field.contents()
        return value[0] if isinstance(value, list) else value

    @property
    def total_bytes(self) -> int:
        return sum(int(tensor.n_bytes) for tensor in self._tensors.values())

    def names(self) -> Collection[str]:
        """The file's own names of tensors that nothing has read so far: there is no way back from every name."""
        return [name for name in self._tensors if name not in self._used and name != "rope_freqs.weight"]

    def has(self, name: str) -> bool:
        return self._find(name) is not None

    def _find(self, name: str) -> tuple[Any, int | None] | None:
        """The file's tensor, and the expert's index if it holds a layer's experts."""
        stacked = expert_tensor(name)
        if stacked is not None:
            tensor = self._tensors.get(stacked[0])
            return None if tensor is None else (tensor, stacked[1])
        tensor = self._tensors.get(gguf_name(name, self.architecture) or "")
        return None if tensor is None else (tensor, None)

    def _get(self, name: str, expected: tuple[int, ...]) -> tuple[Any, int | None]:
        found = self._find(name)
        if found is None:
            known = expert_tensor(name)
            other = known[0] if known else gguf_name(name, self.architecture)
            raise LoadError(f"the GGUF file has no tensor {other} ({name}, expected with shape {list(expected)})")
        return found

    def shape(self, name: str, expected: tuple[int, ...]) -> tuple[int, ...]:
        tensor, expert = self._get(name, expected)
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if expert is None:
            return shape
        if len(shape) != 3 or expert >= shape[0]:
            raise LoadError(f"tensor {tensor.name} has shape {list(shape)}, which holds no expert {expert}")
        return shape[1:]

    def read(self, name: str, shape: tuple[int, ...], region: Region) -> torch.Tensor:
        tensor, expert = self._get(name, shape)
        self._used.add(tensor.name)
        stored = tensor.data if expert is None else tensor.data[expert]
        row_order = None
        if is_rotated(name, self.architecture):
            row_order = self._row_order(name, shape[0])[region[0]]
        rows = stored[region[0]] if row_order is None else stored[row_order]
        try:
            values = gguf.quants.dequantize(rows, tensor.tensor_type)
        except (ValueError, IndexError, NotImplementedError) as error:
            raise LoadError(
                f"tensor {tensor.name} ({tensor.tensor_type.name}) can't be dequantised: {error}"
            ) from error
        values = values.reshape(-1, *shape[1:])[(slice(None), *region[1:])]
        made = torch.from_numpy(numpy.array(values, dtype=numpy.float32))
        return made - 1.0 if is_shifted_gain(name, self.architecture) else made

    def _row_order(self, name: str, rows: int) -> numpy.ndarray[Any, Any]:
        """Where each row of the checkpoint lies in the file: row (half, pair) of a head is kept at (pair, half)."""
        heads = self._heads if ".q_proj." in name else self._kv_heads
        if heads <= 0 or rows % (2 * heads):
            raise LoadError(f"tensor {name} has {rows} rows, which {heads} heads can't share")
        pairs = rows // heads // 2
        return numpy.arange(rows).reshape(heads, pairs, 2).swapaxes(1, 2).reshape(rows)

    def stored_bytes(self, name: str) -> int:
        found = self._find(name)
        if found is None:
            return 0
        tensor, expert = found
        return int(tensor.n_bytes) if expert is None else int(tensor.n_bytes) // int(tensor.shape[-1])

    def close(self) -> None:
        self._tensors.clear()
        self._reader = None
