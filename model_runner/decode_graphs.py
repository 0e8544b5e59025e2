"""Captured graphs of decode steps: one per bucket of rows, replayed instead of launching every kernel anew."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy
import torch
from torch.nn import functional

from model_runner.attention.interface import AttentionBackend
from model_runner.step import CausalModel, StepInputs

BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
"""A step of 100 rows runs the graph of 128; the rest are dummy rows on the scratch page."""

MOST_PAGES = 4 << 20
"""Pages of all rows together that a graph may read: 16 MiB of page numbers. A longer step runs without a graph."""

logger = logging.getLogger(__name__)


@runtime_checkable
class GraphAttention(AttentionBackend, Protocol):
    """A backend whose kernels read a step's pages from where they were in the step before."""

    def reserve_graphs(self, most_pages: int) -> None:
        """Once, before the first graph."""

    def prepare_graph(self, inputs: StepInputs) -> None:
        """In place of `prepare`, for decode rows; outside a graph, before its capture and before each replay."""


class Replayable(Protocol):
    def replay(self) -> torch.Tensor:
        """Runs the captured work on what its tensors hold now; its output, overwritten by the next replay."""


Capture = Callable[[Callable[[], torch.Tensor]], Replayable]


@dataclass(frozen=True)
class FixedTensors:
    """What a bucket's graph reads, always at the same address."""

    ids: torch.Tensor  # [rows] int64
    positions: torch.Tensor  # [rows] int64
    slot_mapping: torch.Tensor  # [rows] int64

    @classmethod
    def of(cls, rows: int, device: torch.device) -> "FixedTensors":
        return cls(*(torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(3)))


class DecodeGraphs:
    """Runs a model's decode steps as graphs. `capture` records work (the real one: `CudaGraph`)."""

    def __init__(self, model: CausalModel, attention: GraphAttention, max_rows: int, capture: Capture) -> None:
        self._model = model
        self._attention = attention
        self._capture = capture
        self._buckets = [bucket for bucket in BUCKETS if bucket < max_rows]
        self._buckets.append(max_rows)
        self._fixed: dict[int, FixedTensors] = {}
        self._graphs: dict[int, Replayable] = {}
        self._pages_per_row = 0

    def capture_all(self, page_size: int, longest_tokens: int) -> None:
        """At the start, once an ordinary decode step has run (it shows the backend which kinds of layers there are).
        The largest comes first: smaller ones reuse its memory."""
        self._pages_per_row = -(-longest_tokens // page_size)
        self._attention.reserve_graphs(min(MOST_PAGES, self._buckets[-1] * self._pages_per_row))
        for bucket in reversed(self._buckets):
            self.forward(dummy_step(1, page_size, self._model.device), bucket)
        logger.info("captured decode graphs for up to %s rows", ", ".join(map(str, self._buckets)))

    def forward(self, inputs: StepInputs, bucket: int | None = None) -> torch.Tensor | None:
        """Hidden states [tokens, hidden] of a decode step, until the next call; None if it is no case for a graph."""
        bucket = bucket or self._bucket(inputs)
        if bucket is None:
            return None
        padded = self._pad(inputs, bucket)
        self._attention.prepare_graph(padded)
        graph = self._graphs.get(bucket)
        if graph is None:
            graph = self._graphs[bucket] = self._capture(lambda: self._model.forward(padded, self._attention))
        return graph.replay()[: inputs.tokens]

    def _bucket(self, inputs: StepInputs) -> int | None:
        if inputs.max_query_tokens > 1 or inputs.rows > self._buckets[-1]:
            return None
        bucket = next(bucket for bucket in self._buckets if bucket >= inputs.rows)
        pages = int((-(-inputs.sequence_lengths_host // inputs.page_size)).sum()) + bucket - inputs.rows
        return bucket if bucket in self._graphs and pages <= MOST_PAGES else None

    def _pad(self, inputs: StepInputs, bucket: int) -> StepInputs:
        """The step in the bucket's own tensors; dummy rows are one token long and live on the scratch page."""
        fixed = self._fixed.get(bucket)
        if fixed is None:
            fixed = self._fixed[bucket] = FixedTensors.of(bucket, inputs.ids.device)
        rows, missing = inputs.rows, bucket - inputs.rows
        for own, given in (
            (fixed.ids, inputs.ids),
            (fixed.positions, inputs.positions),
            (fixed.slot_mapping, inputs.slot_mapping),
        ):
            own[:rows].copy_(given)
            own[rows:].zero_()
        return replace(
            inputs,
            ids=fixed.ids,
            positions=fixed.positions,
            slot_mapping=fixed.slot_mapping,
            page_tables=functional.pad(inputs.page_tables, (0, 0, 0, missing)),
            new_tokens_host=numpy.ones(bucket, dtype=numpy.int32),
            sequence_lengths_host=numpy.pad(inputs.sequence_lengths_host, (0, missing), constant_values=1),
            rows=bucket,
            tokens=bucket,
        )


def dummy_step(rows: int, page_size: int, device: torch.device, tokens_per_row: int = 1) -> StepInputs:
    """Rows of token 0 on the scratch page, all of which is written over: for warming up, measuring and capturing."""
    tokens = rows * tokens_per_row
    one_row = torch.arange(tokens_per_row, device=device)
    pages = -(-tokens_per_row // page_size)
    lengths = numpy.full(rows, tokens_per_row, dtype=numpy.int32)
    return StepInputs(
        ids=torch.zeros(tokens, dtype=torch.int64, device=device),
        positions=one_row.repeat(rows),
        row_of_token=torch.arange(rows, device=device).repeat_interleave(tokens_per_row, output_size=tokens),
        slot_mapping=(one_row % page_size).repeat(rows),
        query_starts=torch.arange(0, tokens + 1, tokens_per_row, dtype=torch.int32, device=device),
        context_lengths=torch.zeros(rows, dtype=torch.int32, device=device),
        sequence_lengths=torch.full((rows,), tokens_per_row, dtype=torch.int32, device=device),
        page_tables=torch.zeros(rows, pages, dtype=torch.int32, device=device),
        logits_indices=torch.arange(tokens_per_row - 1, tokens, tokens_per_row, device=device),
        new_tokens_host=lengths,
        sequence_lengths_host=lengths,
        rows=rows,
        tokens=tokens,
        max_query_tokens=tokens_per_row,
        max_sequence_tokens=tokens_per_row,
        page_size=page_size,
    )


class CudaGraph:
    """A recorded sequence of kernels."""

    def __init__(self, work: Callable[[], torch.Tensor], pool: Any) -> None:
        current = torch.cuda.current_stream()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            work()  # libraries allocate and tune in their first call, which must not be recorded
        current.wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog asks for events from its own thread, which would spoil a capture that forbids it to all threads.
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._output = work()

    def replay(self) -> torch.Tensor:
        self._graph.replay()
        return self._output


def cuda_capture() -> Capture:
    """Captures that share one pool of memory: only one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()
    return lambda work: CudaGraph(work, pool)
