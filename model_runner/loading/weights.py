"""What layers read their weights through: a prefix into a checkpoint, with dtype, device and shard applied.

Peak memory while loading is the weights in their final form, plus one fused weight in the model's dtype, plus
ELEMENTS_AT_ONCE values (256 MiB in float32) as the source hands them out: sources map files and read regions, and
nothing is kept in between.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from model_runner.kernels.packing import GroupedWeight
from model_runner.layers.ops import TORCH_OPS, FusedOps
from model_runner.layers.parallel import Communicator
from model_runner.loading.errors import LoadError
from model_runner.loading.source import GroupSource, Region, WeightSource
from model_runner.quantization.forms import FormFactory, WeightForm

OnProgress = Callable[[str, int, int], None]
"""Called with (what, done bytes, total bytes)."""


ELEMENTS_AT_ONCE = 64 << 20
"""Most values of a matrix that are read in one piece."""


@dataclass
class LoadState:
    """What is shared by all prefixes of one load."""

    source: WeightSource
    dtype: torch.dtype
    device: torch.device
    communicator: Communicator
    make_form: FormFactory
    on_progress: OnProgress | None = None
    ops: FusedOps = TORCH_OPS
    read_names: set[str] = field(default_factory=set)
    done_bytes: int = 0
    weight_bytes: int = 0


class Weights:
    """The tensors under one prefix."""

    def __init__(self, state: LoadState, prefix: str = "") -> None:
        self.state = state
        self.prefix = prefix

    @property
    def communicator(self) -> Communicator:
        return self.state.communicator

    def under(self, name: str) -> "Weights":
        return Weights(self.state, f"{self.prefix}{name}.")

    def has(self, name: str) -> bool:
        return self.state.source.has(self.prefix + name)

    def read(self, name: str, shape: tuple[int, ...], region: Region | None = None) -> torch.Tensor:
        """A region (default: all) of a tensor that must have `shape`, as the source gives it."""
        full = self.prefix + name
        self._check(full, shape)
        data = self.state.source.read(full, shape, region or tuple(slice(None) for _ in shape))
        self._note(full)
        return data

    def tensor(
        self, name: str, shape: tuple[int, ...], region: Region | None = None, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """A copy of the region on the device, in the model's dtype unless told otherwise."""
        data = self.read(name, shape, region)
        made = torch.empty(data.shape, dtype=dtype or self.state.dtype, device=self.state.device)
        made.copy_(data)
        self.state.weight_bytes += made.numel() * made.element_size()
        return made

    def rows(self, parts: "Iterable[RowBlock]", columns: int, column_region: slice = slice(None)) -> torch.Tensor:
        """Row blocks of several [rows, columns] tensors as one weight on the device, read one block at a time."""
        blocks = list(parts)
        width = len(range(*column_region.indices(columns)))
        for block in blocks:  # before anything is allocated: sizes in a configuration may be wild
            self._check(self.prefix + block.name, (block.rows, columns))
        total = sum(block.taken for block in blocks)
        made = torch.empty(total, width, dtype=self.state.dtype, device=self.state.device)
        most = max(1, ELEMENTS_AT_ONCE // columns)
        filled = 0
        for block in blocks:
            start, stop, _ = block.region.indices(block.rows)
            for first in range(start, stop, most):
                part = slice(first, min(stop, first + most))
                data = self.read(block.name, (block.rows, columns), (part, column_region))
                made[filled : filled + data.shape[0]].copy_(data)
                filled += data.shape[0]
        return made

    def grouped(self, name: str, shape: tuple[int, int], rows: slice) -> GroupedWeight | None:
        """Rows of a tensor as the groups of small integers that the checkpoint ships, or None if it ships none."""
        source = self.state.source
        full = self.prefix + name
        if not isinstance(source, GroupSource):
            return None
        found = source.read_grouped(full, shape, rows)
        if found is not None:
            self._note(full)
        return found

    def form(self, weight: torch.Tensor) -> WeightForm:
        """The weight in the form that this deployment computes with."""
        made = self.state.make_form(weight)
        self.state.weight_bytes += made.nbytes
        return made

    def _check(self, full: str, shape: tuple[int, ...]) -> None:
        found = self.state.source.shape(full, shape)
        if found != shape:
            raise LoadError(
                f"tensor {full} has shape {list(found)}, but the model's configuration asks for {list(shape)}"
            )

    def _note(self, full: str) -> None:
        state = self.state
        if full in state.read_names:
            return
        state.read_names.add(full)
        state.done_bytes += state.source.stored_bytes(full)
        if state.on_progress is not None:
            total = max(state.source.total_bytes, state.done_bytes)
            if total:  # random weights have no size to speak of
                state.on_progress("loading weights", state.done_bytes, total)


@dataclass(frozen=True)
class RowBlock:
    """Some rows of one tensor with `rows` rows."""

    name: str
    rows: int
    region: slice = field(default_factory=lambda: slice(None))

    @property
    def taken(self) -> int:
        return len(range(*self.region.indices(self.rows)))
