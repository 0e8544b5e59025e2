"""Plans become tensors: page tables per slot, and the flat arrays of one step. No Python work per token."""

from dataclasses import dataclass

import numpy
import torch
from numpy.typing import NDArray

from model_runner.device_arrays import to_device
from model_runner.step import StepInputs
from protocol.plan import BatchPlan, PageDelta

Int32 = NDArray[numpy.int32]
Int64 = NDArray[numpy.int64]


@dataclass(frozen=True)
class PlanRows:
    """The arrays of a plan, or of some of its rows (when a step is computed in parts)."""

    rows: Int64  # [rows] indices into the plan
    slots: Int32  # [rows]
    new_tokens: Int32  # [rows]
    context: Int32  # [rows]
    draws: Int32  # [rows]
    ids: Int32  # [tokens], negative where the slot's last draw is meant

    @classmethod
    def parse(cls, plan: BatchPlan) -> "PlanRows":
        slots = numpy.frombuffer(plan.slots, "<i4")
        return cls(
            rows=numpy.arange(len(slots)),
            slots=slots,
            new_tokens=numpy.frombuffer(plan.new_tokens, "<i4"),
            context=numpy.frombuffer(plan.context, "<i4"),
            draws=numpy.frombuffer(plan.draws, "<i4"),
            ids=numpy.frombuffer(plan.ids, "<i4"),
        )

    def slice(self, first: int, last: int) -> "PlanRows":
        """Rows first to last (exclusive) with their tokens."""
        token_ends = numpy.cumsum(self.new_tokens)
        begin = int(token_ends[first - 1]) if first else 0
        end = int(token_ends[last - 1]) if last else 0
        return PlanRows(
            self.rows[first:last],
            self.slots[first:last],
            self.new_tokens[first:last],
            self.context[first:last],
            self.draws[first:last],
            self.ids[begin:end],
        )

    def draw_rows(self) -> Int64:
        """For each draw the row (index within these rows) that makes it: [draws]."""
        return numpy.repeat(numpy.arange(len(self.slots)), self.draws)

    def draw_offsets(self) -> Int64:
        """For each draw how many of the row's tokens come after the one it follows: [draws]."""
        draw_ends = numpy.cumsum(self.draws, dtype=numpy.int64)
        return numpy.repeat(draw_ends, self.draws) - 1 - numpy.arange(int(self.draws.sum()))

    def draw_positions(self) -> Int64:
        """The position that each drawn token will stand at: [draws]."""
        ends = (self.context + self.new_tokens).astype(numpy.int64)
        return ends[self.draw_rows()] - self.draw_offsets()


class InputBuilder:
    """Keeps the page table of every slot, and builds `StepInputs`."""

    def __init__(self, max_rows: int, page_size: int, device: torch.device) -> None:
        self._page_size = page_size
        self._device = device
        self._tables = numpy.zeros((max_rows, 16), dtype=numpy.int32)

    def apply(self, deltas: list[PageDelta]) -> None:
        """Overwrites table entries from `first` on."""
        for delta in deltas:
            pages = numpy.frombuffer(delta.pages, "<i4")
            end = delta.first + len(pages)
            if end > self._tables.shape[1]:
                wider = numpy.zeros((self._tables.shape[0], max(end, 2 * self._tables.shape[1])), dtype=numpy.int32)
                wider[:, : self._tables.shape[1]] = self._tables
                self._tables = wider
            self._tables[delta.slot, delta.first : end] = pages

    def build(self, plan: PlanRows, last_ids: torch.Tensor) -> StepInputs:
        """The tensors of these rows; `last_ids` [max_rows] int64 holds on the device what each slot drew last."""
        lengths = plan.context + plan.new_tokens
        ends = numpy.cumsum(plan.new_tokens, dtype=numpy.int64)
        starts = ends - plan.new_tokens
        rows, tokens = len(plan.slots), len(plan.ids)
        row_of_token = numpy.repeat(numpy.arange(rows), plan.new_tokens)
        positions = numpy.arange(tokens) - starts[row_of_token] + plan.context[row_of_token]
        token_slots = plan.slots[row_of_token]
        pages = self._tables[token_slots, positions // self._page_size].astype(numpy.int64)
        longest = int(lengths.max())
        page_tables = self._tables[plan.slots, : -(-longest // self._page_size)]
        # Entries past a row's last page may still name pages of a sequence that held the slot before.
        used = -(-lengths // self._page_size)
        page_tables[numpy.arange(page_tables.shape[1])[None, :] >= used[:, None]] = 0
        return StepInputs(
            ids=self._resolve_ids(plan.ids, token_slots, last_ids),
            positions=self._to_device(positions),
            row_of_token=self._to_device(row_of_token),
            slot_mapping=self._to_device(pages * self._page_size + positions % self._page_size),
            query_starts=self._to_device(numpy.concatenate(([0], ends)).astype(numpy.int32)),
            context_lengths=self._to_device(plan.context.copy()),
            sequence_lengths=self._to_device(lengths),
            page_tables=self._to_device(page_tables),
            logits_indices=self._to_device(ends[plan.draw_rows()] - 1 - plan.draw_offsets()),
            new_tokens_host=plan.new_tokens,
            sequence_lengths_host=lengths,
            rows=rows,
            tokens=tokens,
            max_query_tokens=int(plan.new_tokens.max()),
            max_sequence_tokens=longest,
            page_size=self._page_size,
        )

    def _resolve_ids(self, ids: Int32, token_slots: Int32, last_ids: torch.Tensor) -> torch.Tensor:
        fed = self._to_device(ids.astype(numpy.int64))
        if not (ids < 0).any():
            return fed
        drawn = last_ids[self._to_device(token_slots.astype(numpy.int64))]
        return torch.where(fed < 0, drawn, fed)

    def _to_device(self, array: NDArray[numpy.int32] | NDArray[numpy.int64]) -> torch.Tensor:
        return to_device(array, self._device)
