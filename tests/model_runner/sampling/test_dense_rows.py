"""Rows of slots: nobody else's row moves under a slot, and memory follows use."""

import numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_runner.sampling.bias import LogitBias
from model_runner.sampling.dense_rows import DenseRows

CPU = torch.device("cpu")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=60))
def test_toggling_slots_keeps_everyones_row(toggles: list[int]) -> None:
    rows = DenseRows(10, 3, torch.float32, CPU)
    held: dict[int, float] = {}
    for step, slot in enumerate(toggles):
        if slot in held:
            rows.release(slot)
            del held[slot]
        else:
            row = rows.take(slot)
            assert not row.any()
            row.fill_(step + 1.0)
            held[slot] = step + 1.0
        slots = numpy.array(sorted(held), dtype=numpy.int64)
        assert numpy.flatnonzero(rows.has(numpy.arange(10))).tolist() == sorted(held)
        stored = rows.matrix[torch.from_numpy(rows.rows(slots))]
        assert stored.tolist() == [[held[slot]] * 3 for slot in sorted(held)]
        assert rows.nbytes <= max(4 * len(held), 0) * 3 * 4
        assert held or rows.nbytes == 0


def test_bias_is_added_to_the_rows_that_carry_one() -> None:
    bias = LogitBias(8, 5, CPU)
    bias.start(0, None)
    bias.start(1, {})
    assert bias.nbytes == 0
    bias.start(6, {0: 1.5, 4: -100.0})
    bias.start(2, {3: 7.0})
    logits = torch.ones(4, 5)
    bias.apply(logits, numpy.array([6, 0, 2, 6]))
    carried = [2.5, 1.0, 1.0, 1.0, -99.0]
    assert logits.tolist() == [carried, [1.0] * 5, [1.0, 1.0, 1.0, 8.0, 1.0], carried]
    bias.release(6)
    bias.release(2)
    assert bias.nbytes == 0
    bias.apply(logits, numpy.array([6]))
