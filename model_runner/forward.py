"""The forward pass of a plan's rows, in parts where memory does not allow it in one."""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch.nn import functional

from model_runner.attention.interface import AttentionBackend
from model_runner.decode_graphs import DecodeGraphs
from model_runner.inputs import InputBuilder, PlanRows
from model_runner.prompt_logprobs import PromptLogprobs
from model_runner.step import CausalModel
from protocol.outputs import IdLogprobs

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForwardResult:
    """What some rows' forward pass left. Rows are named by their index in the plan."""

    hidden: torch.Tensor  # [draws, hidden]; zeros of a row that failed, [draws, 0] if all did
    spoiled: torch.Tensor  # [rows] bool: NaN or infinities in the row's hidden states
    failures: dict[int, str] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[IdLogprobs]] = field(default_factory=dict)


class ForwardPass:
    """Runs a model over rows of a plan."""

    def __init__(
        self,
        model: CausalModel,
        attention: AttentionBackend,
        inputs: InputBuilder,
        prompt_logprobs: PromptLogprobs,
        world: int = 1,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self._model = model
        self._attention = attention
        self._inputs = inputs
        self._prompt_logprobs = prompt_logprobs
        self._world = world
        self._graphs = graphs

    def run(self, rows: PlanRows, last_ids: torch.Tensor, reporting: Collection[int]) -> ForwardResult:
        """All rows at once, or, out of memory, half of them after the other half; one row that alone does not fit fails.

        Computing a row twice is harmless: its keys and values are written again. `reporting` rows want prompt logprobs.
        """
        try:
            return self._run(rows, last_ids, reporting)
        except RuntimeError as error:
            # With several ranks the others are in the middle of this step's collectives, and can't turn back: the
            # replica must start again as a whole.
            if self._world > 1 or not is_out_of_memory(error):
                raise
            message = str(error)
        # Outside the handler: the exception's traceback keeps the failed attempt's tensors alive.
        if last_ids.device.type == "cuda":
            torch.cuda.empty_cache()
        count = len(rows.slots)
        if count == 1:
            return self._failed(rows, last_ids.device, message)
        logger.warning("out of memory with %d rows in a step; computing it in two parts", count)
        halves = [
            self.run(rows.slice(first, last), last_ids, reporting)
            for first, last in ((0, count // 2), (count // 2, count))
        ]
        width = max(half.hidden.shape[1] for half in halves)
        return ForwardResult(
            hidden=torch.cat([functional.pad(half.hidden, (0, width - half.hidden.shape[1])) for half in halves]),
            spoiled=torch.cat([half.spoiled for half in halves]),
            failures=halves[0].failures | halves[1].failures,
            prompt_logprobs=halves[0].prompt_logprobs | halves[1].prompt_logprobs,
        )

    def _run(self, rows: PlanRows, last_ids: torch.Tensor, reporting: Collection[int]) -> ForwardResult:
        inputs = self._inputs.build(rows, last_ids)
        hidden = self._graphs.forward(inputs) if self._graphs is not None else None
        if hidden is None:
            self._attention.prepare(inputs)
            hidden = self._model.forward(inputs, self._attention)
        bad_tokens = (~torch.isfinite(hidden.sum(dim=-1, dtype=torch.float32))).float()
        bad_per_row = torch.zeros(inputs.rows, device=hidden.device).index_add_(0, inputs.row_of_token, bad_tokens)
        entries: dict[int, list[IdLogprobs]] = {}
        if reporting:
            end = 0
            for row, slot, new, context in zip(
                rows.rows.tolist(), rows.slots.tolist(), rows.new_tokens.tolist(), rows.context.tolist(), strict=True
            ):
                end += new
                if row in reporting:
                    entries[row] = self._prompt_logprobs.answer(slot, context, hidden[end - new : end])
        return ForwardResult(hidden[inputs.logits_indices], bad_per_row > 0, {}, entries)

    def _failed(self, rows: PlanRows, device: torch.device, message: str) -> ForwardResult:
        logger.error("out of memory with one row alone: %s", message)
        row = int(rows.rows[0])
        return ForwardResult(
            hidden=torch.zeros(int(rows.draws[0]), 0, dtype=self._model.dtype, device=device),
            spoiled=torch.zeros(1, dtype=torch.bool, device=device),
            failures={
                row: f"out of memory: {int(rows.new_tokens[0])} tokens of this request alone do not fit in a step"
            },
        )


def is_out_of_memory(error: RuntimeError) -> bool:
    """CUDA has an exception of its own; the CPU allocator says it in words."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
