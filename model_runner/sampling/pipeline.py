"""The logits pipeline of a step, in its one order, and what slots keep for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from numpy.typing import NDArray

from model_runner.device_arrays import ids_to_device, to_device
from model_runner.sampling import logprobs
from model_runner.sampling.bans import Bans
from model_runner.sampling.bias import LogitBias
from model_runner.sampling.draw import DrawParameters, Search, draw, largest_column
from model_runner.sampling.grammar_mask import allowed_ids, apply_mask
from model_runner.sampling.noise import draw_keys
from model_runner.sampling.penalties import Penalties
from model_runner.sampling.survivors import Survivors, sorted_survivors
from protocol.plan import NOTHING_DRAWN, ForcedTokens, RowStart

NOT_FINITE = -2
"""In `Drawn.ids`: the model's logits hold NaN or +inf."""

NO_TOKEN_LEFT = -3
"""In `Drawn.ids`: bans and allowed ids exclude every token together. A grammar would have overruled them."""

OUT_OF_MEMORY = -4
"""In `Drawn.ids`: the row's draws alone take more memory than there is."""


@dataclass(frozen=True)
class DrawBatch:
    """Which slots draw in this step, in the order of the logits' rows."""

    slots: NDArray[numpy.int64]  # [draws]
    positions: NDArray[numpy.int64]  # [draws] where each drawn token will stand
    checked_against: NDArray[numpy.int64] | None = None
    """With several draws per row: [draws] the id that the row has fed after this draw's token, -1 after its last. A draw
    counts as the row's own only if all draws of the row before it equal what was fed (verified speculation)."""

    def slice(self, first: int, last: int) -> "DrawBatch":
        """Some of the draws; a row's draws are not to be parted."""
        checked = self.checked_against
        return DrawBatch(
            self.slots[first:last], self.positions[first:last], None if checked is None else checked[first:last]
        )


@dataclass(frozen=True)
class DrawMasks:
    """Grammar masks of some draws."""

    draws: NDArray[numpy.int64]  # [masked] indices into the draws
    words: NDArray[numpy.int32]  # [masked, words]

    def slice(self, first: int, last: int) -> "DrawMasks":
        """Those of some of the draws."""
        chosen = (self.draws >= first) & (self.draws < last)
        return DrawMasks(self.draws[chosen] - first, self.words[chosen])


@dataclass(frozen=True)
class Drawn:
    """Ids on the device, negative where there is none, and answers about logprobs for the draws in `asking`."""

    ids: torch.Tensor  # [draws] int64
    asking: NDArray[numpy.int64]  # [asking]
    answer: logprobs.LogprobAnswer | None


class SamplingPipeline:
    """State of every slot's sampling; `draw` runs only the stages that some row of the step needs."""

    def __init__(
        self,
        max_slots: int,
        vocab_size: int,
        device: torch.device,
        survivors: Survivors = sorted_survivors,
        search: Search | None = None,
    ) -> None:
        self._device = device
        self._survivors = survivors
        self._search = search
        self._vocabulary = torch.arange(vocab_size, dtype=torch.int32, device=device)
        self._temperature = numpy.zeros(max_slots, dtype=numpy.float32)
        self._top_k = numpy.zeros(max_slots, dtype=numpy.int64)
        self._top_p = numpy.ones(max_slots, dtype=numpy.float32)
        self._min_p = numpy.zeros(max_slots, dtype=numpy.float32)
        self._seeds = numpy.zeros(max_slots, dtype=numpy.uint64)
        self._questions: dict[int, logprobs.LogprobQuestion] = {}
        self._bans = Bans(device)
        self._penalties = Penalties(max_slots, vocab_size, device)
        self._bias = LogitBias(max_slots, vocab_size, device)
        self.last_ids = torch.zeros(max_slots, dtype=torch.int64, device=device)
        """What each slot drew last: [max_slots]."""

    @property
    def bias_bytes(self) -> int:
        return self._bias.nbytes

    @property
    def penalty_bytes(self) -> int:
        return self._penalties.nbytes

    def start(self, start: RowStart) -> None:
        """The slot is a new sequence's; whatever it held is forgotten."""
        self.release(start.slot)
        slot, sampling = start.slot, start.sampling
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self._seeds[slot] = numpy.uint64(start.seed % 2**64)
        question = logprobs.output_question(sampling)
        if question is not None:
            self._questions[slot] = question
        self._bans.start(start)
        self._penalties.start(start)
        self._bias.start(slot, sampling.logit_bias)

    def release(self, slot: int) -> None:
        self._questions.pop(slot, None)
        self._bans.release(slot)
        self._penalties.release(slot)
        self._bias.release(slot)

    def force(self, forced: ForcedTokens) -> None:
        """The slot's history learns ids that were not drawn."""
        ids = ids_to_device(forced.ids, self._device)
        valid = torch.ones_like(ids, dtype=torch.bool)
        self._penalties.learn(numpy.full(len(ids), forced.slot, dtype=numpy.int64), ids, valid)
        self._bans.learn(forced.slot, ids, valid)

    def draw(self, logits: torch.Tensor, batch: DrawBatch, masks: DrawMasks | None) -> Drawn:
        """Draws from the model's logits, float32 [draws, vocab], which are changed in place. Nothing else is: the slots
        know of what was drawn once they `learn` it."""
        slots = batch.slots
        asking, questions = self._asking(slots)
        raw = logits[self._index(asking)] if len(asking) else None
        ids = self._largest(logits) if self._takes_largest(slots, masks) else self._draw_changed(logits, batch, masks)
        answer = None if raw is None else logprobs.answer(raw, ids[self._index(asking)], questions)
        return Drawn(ids, asking, answer)

    def _takes_largest(self, slots: NDArray[numpy.int64], masks: DrawMasks | None) -> bool:
        """Whether all draws are greedy, from the logits as they are."""
        changed = self._bans.any_of(slots) or self._penalties.any_of(slots) or self._bias.any_of(slots)
        return masks is None and not changed and not self._temperature[slots].any()

    def _largest(self, logits: torch.Tensor) -> torch.Tensor:
        """One pass over the logits: NaN counts as the largest, so the largest alone says whether all are finite."""
        ids = largest_column(logits)
        return torch.where(torch.isfinite(logits.gather(1, ids[:, None])[:, 0]), ids, NOT_FINITE)

    def _draw_changed(self, logits: torch.Tensor, batch: DrawBatch, masks: DrawMasks | None) -> torch.Tensor:
        slots = batch.slots
        finite = torch.isfinite(logits.amax(dim=-1))
        if self._bans.any_of(slots):
            self._bans.apply(logits, slots, batch.positions, self._legal(masks, logits.shape[1]))
        self._penalties.apply(logits, slots)
        self._bias.apply(logits, slots)
        if masks is not None and len(masks.draws):
            apply_mask(logits, self._index(masks.draws), to_device(masks.words, self._device))
        ids = draw(logits, self._parameters(batch), self._vocabulary, self._survivors, self._search)
        return self._mark_undrawn(ids, logits, finite, masks)

    def _legal(self, masks: DrawMasks | None, vocab_size: int) -> dict[int, torch.Tensor]:
        """What the grammar of each masked draw allows: [vocab] bool."""
        if masks is None or not len(masks.draws):
            return {}
        allowed = allowed_ids(to_device(masks.words, self._device), vocab_size)
        return dict(zip(masks.draws.tolist(), allowed, strict=True))

    def _asking(self, slots: NDArray[numpy.int64]) -> tuple[NDArray[numpy.int64], Sequence[logprobs.LogprobQuestion]]:
        if not self._questions:
            return numpy.empty(0, dtype=numpy.int64), ()
        asking = [draw for draw, slot in enumerate(slots.tolist()) if slot in self._questions]
        return numpy.array(asking, dtype=numpy.int64), [self._questions[int(slots[draw])] for draw in asking]

    def _parameters(self, batch: DrawBatch) -> DrawParameters:
        slots = batch.slots
        return DrawParameters(
            temperature=self._temperature[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            min_p=self._min_p[slots],
            keys=draw_keys(self._seeds[slots], batch.positions),
        )

    def _mark_undrawn(
        self, ids: torch.Tensor, logits: torch.Tensor, finite: torch.Tensor, masks: DrawMasks | None
    ) -> torch.Tensor:
        chosen = logits.gather(1, ids[:, None])[:, 0]
        ids = torch.where(chosen == -torch.inf, NO_TOKEN_LEFT, ids)
        if masks is not None:
            nothing_allowed = numpy.flatnonzero(~masks.words.any(axis=1))
            ids[self._index(masks.draws[nothing_allowed])] = NOTHING_DRAWN
        return torch.where(finite, ids, NOT_FINITE)

    def learn(self, batch: DrawBatch, ids: torch.Tensor) -> None:
        """The slots' histories learn what was drawn: [draws] int64, negative where nothing was."""
        valid = ids >= 0
        slots = batch.slots
        if batch.checked_against is not None:
            firsts = numpy.flatnonzero(numpy.diff(slots, prepend=-1))
            row_of_draw = numpy.repeat(numpy.arange(len(firsts)), numpy.diff(firsts, append=len(slots)))
            valid &= self._accepted(batch, ids, self._index(firsts[row_of_draw]))
            # A row's valid draws are its first ones, and the last of them is its newest token.
            counts = torch.zeros(len(firsts), dtype=torch.int64, device=self._device)
            counts.index_add_(0, self._index(row_of_draw), valid.long())
            newest = ids[self._index(firsts) + (counts - 1).clamp_(min=0)]
            index = self._index(slots[firsts])
            self.last_ids[index] = torch.where(counts > 0, newest, self.last_ids[index])
        else:
            index = self._index(slots)
            self.last_ids[index] = torch.where(valid, ids, self.last_ids[index])
        self._penalties.learn(slots, ids, valid)
        if self._bans.any_of(slots):
            for draw_index, slot in enumerate(slots.tolist()):
                self._bans.learn(slot, ids[draw_index : draw_index + 1], valid[draw_index : draw_index + 1])

    def _accepted(self, batch: DrawBatch, ids: torch.Tensor, first_of_row: torch.Tensor) -> torch.Tensor:
        """Draws of a row up to and including the first that differs from what the row has fed: [draws] bool."""
        assert batch.checked_against is not None
        differs = (ids != self._index(batch.checked_against)).long()
        differing_before = differs.cumsum(0) - differs
        return differing_before == differing_before[first_of_row]

    def _index(self, values: NDArray[numpy.int64]) -> torch.Tensor:
        return to_device(values, self._device)
