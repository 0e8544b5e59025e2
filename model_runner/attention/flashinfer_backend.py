"""Attention by flashinfer's paged kernels (CUDA): one plan per step for each kind of layer, whatever the mix of rows.

A step whose rows all decode runs on the decode wrapper, any other on the ragged prefill wrapper. Everything that the
plans read on the host comes from the host, so that preparing a step never waits for the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from model_runner.attention.interface import AttentionSpec, LayerKV
from model_runner.attention.pages import page_bytes, store
from model_runner.device_arrays import to_device
from model_runner.step import StepInputs
from runtime.start_error import StartError

WORKSPACE_BYTES = 256 << 20
"""Partial results of long sequences that are split over blocks; shared by all plans, which run one after the other."""

KERNELS = "fa2"
"""The one family that does all of this (paged, windows, soft caps, graphs) on every architecture since Ampere."""


def import_flashinfer() -> Any:
    try:
        import flashinfer
    except ImportError as error:
        raise StartError(
            f"--attention-backend flashinfer needs the package flashinfer-python ({error}); "
            "--attention-backend torch runs without it"
        ) from None
    return flashinfer


@dataclass(frozen=True)
class LayerKind:
    """What one plan serves: layers that differ in none of this share it."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int | None
    logit_soft_cap: float | None
    causal: bool
    sinks: bool

    @property
    def window_left(self) -> int:
        """A window of w lets a query see itself and w - 1 keys to its left."""
        return -1 if self.sliding_window is None else self.sliding_window - 1


@dataclass(frozen=True)
class PagedRows:
    """A step's rows as flashinfer reads them. Row r's pages are `pages[page_starts[r] : page_starts[r + 1]]`."""

    query_starts: torch.Tensor  # [rows + 1] int32, host
    page_starts: torch.Tensor  # [rows + 1] int32, host
    last_page_tokens: torch.Tensor  # [rows] int32, host: tokens in each row's last page, 1..page_size
    pages: torch.Tensor  # [all rows' pages] int32, device
    page_size: int
    decodes: bool

    @classmethod
    def of(cls, inputs: StepInputs) -> "PagedRows":
        device = inputs.page_tables.device
        lengths = inputs.sequence_lengths_host.astype(numpy.int64)
        counts = -(-lengths // inputs.page_size)
        starts = numpy.concatenate(([0], numpy.cumsum(counts)))
        total = int(starts[-1])
        # How many there are is known on the host, so the device can find them without being asked anything.
        rows = torch.arange(len(counts), device=device).repeat_interleave(to_device(counts, device), output_size=total)
        columns = torch.arange(total, device=device) - to_device(starts[:-1].copy(), device)[rows]
        return cls(
            query_starts=_host(numpy.concatenate(([0], numpy.cumsum(inputs.new_tokens_host))), device),
            page_starts=_host(starts, device),
            last_page_tokens=_host((lengths - 1) % inputs.page_size + 1, device),
            pages=inputs.page_tables[rows, columns],
            page_size=inputs.page_size,
            decodes=inputs.max_query_tokens == 1,
        )


def _host(values: "numpy.ndarray[Any, Any]", device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(values.astype(numpy.int32))
    return tensor.pin_memory() if device.type == "cuda" else tensor


class FlashInferAttention:
    """`AttentionBackend` over pools laid out [pages, page_size, kv_heads, head_dim], keys and values apart. `library` is
    for tests: what is imported otherwise."""

    def __init__(self, device: torch.device, dtype: torch.dtype, library: Any = None) -> None:
        if dtype not in (torch.bfloat16, torch.float16):
            raise StartError(f"--attention-backend flashinfer computes in bfloat16 or float16, not {dtype}")
        self._library = library or import_flashinfer()
        self._device = device
        self._dtype = dtype
        self._workspace = torch.zeros(WORKSPACE_BYTES if device.type == "cuda" else 1, dtype=torch.uint8, device=device)
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._rows: PagedRows | None = None
        self._slot_mapping = torch.empty(0, dtype=torch.int64)
        self._wrappers: dict[tuple[LayerKind, bool], Any] = {}
        self._planned: dict[LayerKind, Any] = {}
        self._uploaded: torch.cuda.Event | None = None
        self._graphs = GraphPlans(self._library, self._workspace, device)

    def bytes_per_page(self, layers: Sequence[LayerKV], page_size: int) -> int:
        for layer in layers:
            if layer.value_dim != layer.key_dim:
                raise StartError(
                    "--attention-backend flashinfer has no place for keys and values of different widths "
                    f"({layer.key_dim} and {layer.value_dim}) here; --attention-backend torch has"
                )
        return page_bytes(layers, page_size, self._dtype)

    def make_pool(self, layers: Sequence[LayerKV], pages: int, page_size: int) -> None:
        for layer in layers:
            for pools in (self._keys, self._values):
                shape = (pages, page_size, layer.kv_heads, layer.key_dim)
                pools.append(torch.zeros(shape, dtype=self._dtype, device=self._device))

    def prepare(self, inputs: StepInputs) -> None:
        self._begin(inputs)
        self._planned = {}

    def reserve_graphs(self, most_pages: int) -> None:
        self._graphs.reserve(most_pages)

    def prepare_graph(self, inputs: StepInputs) -> None:
        """As `prepare`, for decode rows in a graph's own tensors: every kind of layer is planned now, since a replay
        calls no layer. Kinds are known from steps that ran before."""
        rows = self._begin(inputs)
        kinds = dict.fromkeys(kind for kind, _ in self._wrappers)
        self._planned = {kind: self._graphs.plan(kind, rows, self._options(kind)) for kind in kinds}
        self._note_upload()

    def _begin(self, inputs: StepInputs) -> PagedRows:
        if self._uploaded is not None:
            # A plan is written into pinned memory that the last plan may still be read from. Its upload is the first
            # thing that the step in flight does, so with one step in flight this does not wait.
            self._uploaded.synchronize()
        self._slot_mapping = inputs.slot_mapping
        self._rows = PagedRows.of(inputs)
        return self._rows

    def _note_upload(self) -> None:
        if self._device.type == "cuda":
            self._uploaded = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._uploaded.record()

    def attend(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        spec: AttentionSpec,
    ) -> torch.Tensor:
        keys, values = self._keys[layer_index], self._values[layer_index]
        if key is not None and value is not None:
            store(keys, self._slot_mapping, key)
            store(values, self._slot_mapping, value)
        if spec.sinks is not None and spec.logit_soft_cap is not None:
            raise StartError(
                "--attention-backend flashinfer has no attention sinks beside a soft cap; --attention-backend torch has"
            )
        kind = LayerKind(
            heads=query.shape[1],
            kv_heads=keys.shape[2],
            head_dim=query.shape[2],
            scale=spec.scale,
            sliding_window=spec.sliding_window,
            logit_soft_cap=spec.logit_soft_cap,
            causal=spec.causal,
            sinks=spec.sinks is not None,
        )
        wrapper = self._planned.get(kind)
        if wrapper is None:
            wrapper = self._planned[kind] = self._plan(kind)
        # What the kernels for sinks read beside their plan.
        more = () if spec.sinks is None else (spec.sinks, spec.scale)
        attended: torch.Tensor = wrapper.run(query.contiguous(), (keys, values), *more)
        return attended

    def _plan(self, kind: LayerKind) -> Any:
        rows = self._rows
        assert rows is not None, "prepare comes before the first layer"
        decodes = rows.decodes and kind.causal
        wrapper = self._wrappers.get((kind, decodes))
        if wrapper is None:
            wrapper = self._wrappers[kind, decodes] = self._make_wrapper(kind, decodes)
        if decodes:
            plan_decode(wrapper, kind, rows, self._options(kind))
        else:
            wrapper.plan(
                rows.query_starts,
                rows.page_starts,
                rows.pages,
                rows.last_page_tokens,
                kind.heads,
                kind.kv_heads,
                kind.head_dim,
                rows.page_size,
                causal=kind.causal,
                **self._options(kind),
            )
        self._note_upload()
        return wrapper

    def _make_wrapper(self, kind: LayerKind, decodes: bool) -> Any:
        if decodes:
            return make_decode_wrapper(self._library, self._workspace, kind, self._dtype)
        if kind.sinks:
            return self._library.BatchAttentionWithAttentionSinkWrapper(
                self._workspace, "NHD", backend=KERNELS, **sink_options(kind, self._dtype)
            )
        return self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD", backend=KERNELS)

    def _options(self, kind: LayerKind) -> dict[str, Any]:
        return {
            "sm_scale": kind.scale,
            "window_left": kind.window_left,
            "logits_soft_cap": kind.logit_soft_cap,
            "q_data_type": self._dtype,
            "kv_data_type": self._dtype,
        }


class GraphPlans:
    """Decode wrappers for captured graphs: what they read keeps its address from plan to plan."""

    def __init__(self, library: Any, workspace: torch.Tensor, device: torch.device) -> None:
        self._library = library
        self._workspace = workspace
        self._device = device
        self._wrappers: dict[tuple[int, LayerKind], Any] = {}
        self._pages = torch.empty(0, dtype=torch.int32, device=device)

    def reserve(self, most_pages: int) -> None:
        """Once, before the first plan. All plans share the list: in one step it is the same for every kind."""
        assert not self._wrappers
        self._pages = torch.zeros(most_pages, dtype=torch.int32, device=self._device)

    def plan(self, kind: LayerKind, rows: PagedRows, options: dict[str, Any]) -> Any:
        count = len(rows.last_page_tokens)
        wrapper = self._wrappers.get((count, kind))
        if wrapper is None:
            wrapper = self._wrappers[count, kind] = make_decode_wrapper(
                self._library,
                self._workspace,
                kind,
                options["q_data_type"],
                use_cuda_graph=True,
                paged_kv_indptr_buffer=torch.zeros(count + 1, dtype=torch.int32, device=self._device),
                paged_kv_indices_buffer=self._pages,
                paged_kv_last_page_len_buffer=torch.zeros(count, dtype=torch.int32, device=self._device),
            )
        plan_decode(wrapper, kind, rows, options)
        return wrapper


def make_decode_wrapper(
    library: Any, workspace: torch.Tensor, kind: LayerKind, dtype: torch.dtype, **options: Any
) -> Any:
    if kind.sinks:
        options |= sink_options(kind, dtype)
        return library.BatchDecodeWithAttentionSinkWrapper(workspace, "NHD", backend=KERNELS, **options)
    return library.BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_tensor_cores=True, backend=KERNELS, **options
    )


def sink_options(kind: LayerKind, dtype: torch.dtype) -> dict[str, Any]:
    """What kernels for sinks are compiled for."""
    return {
        "q_data_type": dtype,
        "kv_data_type": dtype,
        "head_dim_qk": kind.head_dim,
        "head_dim_vo": kind.head_dim,
        "window_left": kind.window_left,
    }


def plan_decode(wrapper: Any, kind: LayerKind, rows: PagedRows, options: dict[str, Any]) -> None:
    wrapper.plan(
        rows.page_starts,
        rows.pages,
        rows.last_page_tokens,
        kind.heads,
        kind.kv_heads,
        kind.head_dim,
        rows.page_size,
        **options,
    )
