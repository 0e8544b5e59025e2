"""Ids that may not be drawn: ends before `min_tokens`, banned sequences, everything but the allowed ids."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy
import torch
from numpy.typing import NDArray

from model_runner.device_arrays import to_device
from protocol.ids import count_ids, unpack_ids
from protocol.plan import RowStart

ANY_ID = -1
"""In a sequence's prefix: matches whatever stands there (prefixes are padded to one length)."""


@dataclass
class RowBans:
    """What one slot bans. A sequence of one id is banned always; a longer one bans its last id after the others."""

    prompt_tokens: int
    min_tokens: int
    end_ids: torch.Tensor  # [ends] int64
    single_ids: torch.Tensor  # [singles] int64
    prefixes: torch.Tensor  # [sequences, longest prefix] int64, ANY_ID on the left of shorter ones
    last_ids: torch.Tensor  # [sequences] int64
    tail: torch.Tensor  # [longest prefix] int64, the newest ids of prompt and output
    allowed: torch.Tensor | None  # [allowed] int64


class Bans:
    """The bans of every slot that has any."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rows: dict[int, RowBans] = {}

    def start(self, start: RowStart) -> None:
        sampling = start.sampling
        ends_matter = sampling.min_tokens > 0 and bool(start.end_ids)
        if not (ends_matter or sampling.banned_sequences or sampling.allowed_token_ids is not None):
            return
        long = [sequence for sequence in sampling.banned_sequences if len(sequence) > 1]
        width = max((len(sequence) - 1 for sequence in long), default=0)
        prefixes = [[ANY_ID] * (width + 1 - len(sequence)) + list(sequence[:-1]) for sequence in long]
        # Beyond every id, so that a sequence can't match before the history is long enough.
        before_all = [numpy.iinfo(numpy.int32).max] * width
        history = before_all + unpack_ids(start.prompt_ids)[-width:] + unpack_ids(start.output_ids)[-width:]
        allowed = sampling.allowed_token_ids
        self._rows[start.slot] = RowBans(
            prompt_tokens=count_ids(start.prompt_ids),
            min_tokens=sampling.min_tokens if ends_matter else 0,
            end_ids=self._tensor(list(start.end_ids)),
            single_ids=self._tensor([sequence[0] for sequence in sampling.banned_sequences if len(sequence) == 1]),
            prefixes=self._tensor(prefixes).view(len(long), width),
            last_ids=self._tensor([sequence[-1] for sequence in long]),
            tail=self._tensor(history[len(history) - width :]),
            allowed=None if allowed is None else self._tensor(list(allowed)),
        )

    def release(self, slot: int) -> None:
        self._rows.pop(slot, None)

    def learn(self, slot: int, ids: torch.Tensor, valid: torch.Tensor) -> None:
        """Appends ids [count] to the slot's history, those that are `valid` [count] (known on the device only)."""
        row = self._rows.get(slot)
        if row is None or not row.tail.numel():
            return
        for position in range(ids.shape[0]):
            longer = torch.cat((row.tail[1:], ids[position : position + 1]))
            row.tail = torch.where(valid[position], longer, row.tail)

    def any_of(self, slots: NDArray[numpy.int64]) -> bool:
        return bool(self._rows) and any(slot in self._rows for slot in slots.tolist())

    def apply(
        self,
        logits: torch.Tensor,
        slots: NDArray[numpy.int64],
        positions: NDArray[numpy.int64],
        legal: Mapping[int, torch.Tensor],
    ) -> None:
        """Sets logits [draws, vocab] of banned ids to -inf, in place. `positions` [draws] are those of the drawn tokens,
        `legal` has what the grammar of a draw allows, [vocab] bool: a ban that would leave nothing of it gives way."""
        for draw, (slot, position) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
            row = self._rows.get(slot)
            if row is None:
                continue
            for stage in STAGES:
                if draw in legal:
                    _apply_unless_stuck(stage, logits[draw], row, position, legal[draw])
                else:
                    stage(logits[draw], row, position)

    def _tensor(self, values: list[int] | list[list[int]]) -> torch.Tensor:
        return to_device(numpy.array(values, dtype=numpy.int64), self._device)


def ban_early_ends(logits: torch.Tensor, row: RowBans, position: int) -> None:
    """Fewer than `min_tokens` output tokens come before this one: [vocab]."""
    if position - row.prompt_tokens < row.min_tokens:
        logits[row.end_ids] = -torch.inf


def ban_sequences(logits: torch.Tensor, row: RowBans, position: int) -> None:
    if row.single_ids.numel():
        logits[row.single_ids] = -torch.inf
    if row.last_ids.numel():
        complete = ((row.prefixes == row.tail) | (row.prefixes == ANY_ID)).all(dim=1)
        # Two sequences may end in the same id: the sum of their penalties is -inf as soon as one matches.
        penalty = torch.zeros_like(logits).index_add_(0, row.last_ids, complete.to(logits.dtype))
        logits.masked_fill_(penalty > 0, -torch.inf)


def keep_allowed(logits: torch.Tensor, row: RowBans, position: int) -> None:
    if row.allowed is not None:
        kept = logits[row.allowed]
        logits.fill_(-torch.inf)
        logits[row.allowed] = kept


Stage = Callable[[torch.Tensor, RowBans, int], None]
STAGES: tuple[Stage, ...] = (ban_early_ends, ban_sequences, keep_allowed)


def _apply_unless_stuck(stage: Stage, logits: torch.Tensor, row: RowBans, position: int, legal: torch.Tensor) -> None:
    before = logits.clone()
    stage(logits, row, position)
    # A choice on the device: asking it here whether something is left would wait for the step.
    something_left = ((logits > -torch.inf) & legal).any()
    logits.copy_(torch.where(something_left, logits, before))
