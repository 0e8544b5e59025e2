"""Safetensors checkpoints: one file, or several behind an index. Files are mapped, tensors read region by region."""

import json
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from model_runner.loading.errors import LoadError
from model_runner.loading.source import Region

INDEX_NAME = "model.safetensors.index.json"
DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I16": 2}
DTYPE_BYTES |= {"I8": 1, "U8": 1, "BOOL": 1, "F8_E8M0": 1, "U16": 2, "U32": 4, "U64": 8}


def checkpoint_files(folder: Path) -> list[Path]:
    """The checkpoint's files, by its index where it has one; LoadError if there are none or some are missing."""
    index = folder / INDEX_NAME
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LoadError(f"{index} is not an index of safetensors files: {error}") from error
        # A name from the index must stay in the folder: an index is data, and may be hostile.
        files = [folder / Path(str(name)).name for name in names]
    else:
        files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    if not files:
        raise LoadError(f"no .safetensors files in {folder}")
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise LoadError(f"{INDEX_NAME} names {missing[0]}, which is not in {folder} ({len(missing)} files missing)")
    return files


class SafetensorsSource:
    """All tensors of a folder's files."""

    def __init__(self, path: Path) -> None:
        self._stack = ExitStack()
        self._where: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for file in checkpoint_files(path) if path.is_dir() else [path]:
            self._open(file)
        self._total = sum(self._sizes.values())

    def _open(self, file: Path) -> None:
        try:
            handle: Any = self._stack.enter_context(safe_open(str(file), framework="pt", device="cpu"))
            for name in handle.keys():  # noqa: SIM118 - not a dict
                piece = handle.get_slice(name)
                shape = tuple(piece.get_shape())
                count = 1
                for size in shape:
                    count *= size
                self._where[name] = handle
                self._shapes[name] = shape
                self._sizes[name] = count * DTYPE_BYTES.get(piece.get_dtype(), 4)
        except (SafetensorError, OSError, ValueError, OverflowError) as error:
            raise LoadError(f"{file} is not a complete safetensors file: {error}") from error

    @property
    def total_bytes(self) -> int:
        return self._total

    def names(self) -> Collection[str]:
        return self._where.keys()

    def has(self, name: str) -> bool:
        return name in self._where

    def shape(self, name: str, expected: tuple[int, ...]) -> tuple[int, ...]:
        if name not in self._shapes:
            raise LoadError(f"the checkpoint has no tensor {name} (expected with shape {list(expected)})")
        return self._shapes[name]

    def read(self, name: str, shape: tuple[int, ...], region: Region) -> torch.Tensor:
        try:
            if not shape:
                return self._where[name].get_tensor(name)  # type: ignore[no-any-return]
            return self._where[name].get_slice(name)[region]  # type: ignore[no-any-return]
        except (SafetensorError, OSError, RuntimeError) as error:
            raise LoadError(f"tensor {name} can't be read: {error}") from error

    def stored_bytes(self, name: str) -> int:
        return self._sizes.get(name, 0)

    def close(self) -> None:
        self._stack.close()
        self._where.clear()
