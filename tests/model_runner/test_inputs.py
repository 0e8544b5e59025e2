"""Plans as tensors."""

import numpy
import torch

from model_runner.inputs import InputBuilder, PlanRows
from protocol.ids import pack_ids
from protocol.plan import BatchPlan, PageDelta

PLAN = BatchPlan(
    step=1,
    slots=pack_ids([4, 0, 2]),
    new_tokens=pack_ids([1, 3, 5]),
    context=pack_ids([6, 0, 2]),
    draws=pack_ids([1, 0, 2]),
    ids=pack_ids([-1, 10, 11, 12, 20, 21, 22, 23, 24]),
)


def builder() -> InputBuilder:
    made = InputBuilder(8, 4, torch.device("cpu"))
    made.apply([PageDelta(4, 0, pack_ids([9, 8])), PageDelta(0, 0, pack_ids([3])), PageDelta(2, 0, pack_ids([5, 7]))])
    return made


def test_flat_arrays() -> None:
    last_ids = torch.tensor([0, 0, 0, 0, 77, 0, 0, 0])
    inputs = builder().build(PlanRows.parse(PLAN), last_ids)
    assert inputs.ids.tolist() == [77, 10, 11, 12, 20, 21, 22, 23, 24]
    assert inputs.positions.tolist() == [6, 0, 1, 2, 2, 3, 4, 5, 6]
    assert inputs.row_of_token.tolist() == [0, 1, 1, 1, 2, 2, 2, 2, 2]
    assert inputs.slot_mapping.tolist() == [8 * 4 + 2, 12, 13, 14, 22, 23, 28, 29, 30]
    assert inputs.query_starts.tolist() == [0, 1, 4, 9]
    assert inputs.context_lengths.tolist() == [6, 0, 2]
    assert inputs.sequence_lengths.tolist() == [7, 3, 7]
    assert inputs.page_tables.tolist() == [[9, 8], [3, 0], [5, 7]]
    assert inputs.logits_indices.tolist() == [0, 7, 8]
    assert (inputs.rows, inputs.tokens, inputs.max_query_tokens, inputs.max_sequence_tokens) == (3, 9, 5, 7)


def test_draws_in_order() -> None:
    rows = PlanRows.parse(PLAN)
    assert rows.draw_rows().tolist() == [0, 2, 2]
    assert rows.draw_offsets().tolist() == [0, 1, 0]
    assert rows.draw_positions().tolist() == [7, 6, 7]


def test_slices_keep_their_tokens_and_names() -> None:
    rows = PlanRows.parse(PLAN).slice(1, 3)
    assert rows.rows.tolist() == [1, 2]
    assert rows.ids.tolist() == [10, 11, 12, 20, 21, 22, 23, 24]
    assert PlanRows.parse(PLAN).slice(0, 1).ids.tolist() == [-1]


def test_a_delta_overwrites_from_its_entry_on_and_grows_the_table() -> None:
    made = builder()
    made.apply([PageDelta(2, 1, pack_ids(range(100, 140)))])
    plan = BatchPlan(0, pack_ids([2]), pack_ids([1]), pack_ids([163]), pack_ids([1]), pack_ids([1]))
    inputs = made.build(PlanRows.parse(plan), torch.zeros(8, dtype=torch.int64))
    assert inputs.page_tables.tolist() == [[5, *range(100, 140)]]
    assert inputs.slot_mapping.tolist() == [139 * 4 + 3]


def test_entries_past_the_last_page_are_scratch() -> None:
    """A slot's former owner had more pages; its entries must not be read as the new owner's."""
    made = builder()
    made.apply([PageDelta(0, 0, pack_ids([1, 2, 6]))])
    plan = BatchPlan(0, pack_ids([0, 4]), pack_ids([2, 1]), pack_ids([0, 6]), pack_ids([1, 1]), pack_ids([1, 2, 3]))
    inputs = made.build(PlanRows.parse(plan), torch.zeros(8, dtype=torch.int64))
    assert inputs.page_tables.tolist() == [[1, 0], [9, 8]]
    assert inputs.page_tables.dtype == torch.int32
    assert inputs.new_tokens_host.dtype == numpy.int32
