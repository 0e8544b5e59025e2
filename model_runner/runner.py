"""Executes plans on one device: launch, sample, collect. It never decides what runs."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy
import torch
from numpy.typing import NDArray

from model_runner.attention.interface import AttentionBackend
from model_runner.attention.registry import build_attention
from model_runner.device_arrays import HostCopy
from model_runner.draws import DrawPass
from model_runner.forward import ForwardPass, ForwardResult
from model_runner.inputs import InputBuilder, PlanRows
from model_runner.kernels.selection import choose_search
from model_runner.layers.ops import NATIVE, choose_ops
from model_runner.memory import count_pages
from model_runner.models.registry import build_model
from model_runner.parallel.group import LEADER, OneRank, RankGroup
from model_runner.prompt_logprobs import PromptLogprobs
from model_runner.sampling.grammar_mask import parse_words
from model_runner.sampling.logprobs import LogprobAnswer
from model_runner.sampling.pipeline import (
    NO_TOKEN_LEFT,
    NOT_FINITE,
    OUT_OF_MEMORY,
    DrawBatch,
    DrawMasks,
    SamplingPipeline,
)
from model_runner.sampling.survivors import choose_survivors
from model_runner.step import CausalModel
from model_runner.step_timer import StepTimer
from model_runner.warm_up import capture_graphs, measure_step_bytes
from protocol.outputs import IdLogprobs
from protocol.plan import NOTHING_DRAWN, BatchPlan, Capacity, GrammarMasks, RowFailure, StepResult
from runtime.engine_config import EngineConfig

logger = logging.getLogger(__name__)

PROBE_ROWS = 1
"""The scheduler keeps one row free for health probes, beside those that --max-running-requests promises."""
NOT_FINITE_MESSAGE = "the model computed NaN or infinite values for this request"
NO_TOKEN_LEFT_MESSAGE = "banned, allowed and minimum tokens together leave no token to draw"
OUT_OF_MEMORY_MESSAGE = "out of memory: the draw of this request alone does not fit"
UNDRAWN = (
    (NOT_FINITE, NOT_FINITE_MESSAGE),
    (NO_TOKEN_LEFT, NO_TOKEN_LEFT_MESSAGE),
    (OUT_OF_MEMORY, OUT_OF_MEMORY_MESSAGE),
)


@dataclass(frozen=True)
class PendingAnswer:
    """Logprobs on their way to the host, of the draws in `asking`."""

    asking: NDArray[numpy.int64]
    answer: LogprobAnswer
    copy: HostCopy


@dataclass
class PendingStep:
    """A launched step until it is collected."""

    plan: BatchPlan
    rows: PlanRows
    timer: StepTimer
    forward: ForwardResult | None = None
    spoiled: HostCopy | None = None  # [rows] bool
    ids: HostCopy | None = None  # [draws] int64
    answers: list[PendingAnswer] = field(default_factory=list)


class ModelRunner:
    """`protocol.plan.Executor` for one model on one device.

    `on_progress(what, done, total)` is called while weights load. `model` and `attention` are for tests and tools that
    have built them already; a server's come from the configuration. With several ranks in `group` each holds a share of
    the model and runs the same plans; rank 0 draws, the others learn what it drew.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_progress: Callable[[str, int, int], None] | None = None,
        *,
        model: CausalModel | None = None,
        attention: AttentionBackend | None = None,
        group: RankGroup | None = None,
    ) -> None:
        # Beside the CPU kernels' own team torch only samples: a second team, which spins, would take the first one's cores.
        torch.set_num_threads(1 if config.attention_backend == "cpu" else config.threads)
        self._group = group or OneRank()
        self._leads = self._group.rank == LEADER
        self._model = model or build_model(config, self._group.rank, self._group.world, on_progress, self._group)
        device, layers = self._model.device, self._model.layer_specs
        attention = attention or build_attention(config.attention_backend, device, self._model.dtype)
        bytes_per_page = attention.bytes_per_page(layers, config.page_size)
        step_bytes = measure_step_bytes(config, self._model)
        pages = self._group.smallest(count_pages(config, bytes_per_page, device, step_bytes))
        attention.make_pool(layers, pages, config.page_size)
        max_rows = config.max_running_requests + PROBE_ROWS
        self._inputs = InputBuilder(max_rows, config.page_size, device)
        survivors, filters_by = choose_survivors(device)
        self._sampling = SamplingPipeline(
            max_rows, self._model.vocab_size, device, survivors, choose_search(self._model)
        )
        self._prompt_logprobs = PromptLogprobs(self._model)
        graphs = capture_graphs(config, self._model, attention, max_rows)
        self._forward = ForwardPass(
            self._model, attention, self._inputs, self._prompt_logprobs, self._group.world, graphs
        )
        self._draws = DrawPass(self._model, self._sampling, self._group.world)
        self._pending: deque[PendingStep] = deque()
        self._steps = 0
        self._forward_us = 0
        self.capacity = Capacity(
            pages=pages,
            page_size=config.page_size,
            max_rows=max_rows,
            vocab_size=self._model.vocab_size,
            kv_bytes=pages * bytes_per_page,
            weight_bytes=self._model.weight_bytes,
            kernels=describe_kernels(config, self._model, filters_by, graphs is not None),
        )
        if self._leads:
            logger.info("kernels: %s", ", ".join(f"{what} by {who}" for what, who in self.capacity.kernels.items()))

    @torch.inference_mode()
    def launch(self, plan: BatchPlan) -> None:
        for slot in plan.released:
            self._sampling.release(slot)
            self._prompt_logprobs.release(slot)
        for start in plan.starts:
            if self._leads:
                self._sampling.start(start)
            self._prompt_logprobs.start(start)
        if self._leads:
            for forced in plan.forced:
                self._sampling.force(forced)
        self._inputs.apply(plan.page_deltas)
        rows = PlanRows.parse(plan)
        step = PendingStep(plan, rows, StepTimer(self._model.device))
        self._pending.append(step)
        step.timer.begin()
        if len(rows.slots):
            step.forward = self._forward.run(rows, self._sampling.last_ids, frozenset(plan.prompt_logprobs))
            step.spoiled = HostCopy(step.forward.spoiled)
        step.timer.end()

    @torch.inference_mode()
    def sample(self, masks: GrammarMasks | None) -> None:
        """Draws for the step launched last."""
        step = self._pending[-1]
        if step.forward is None or not step.forward.hidden.numel():
            return
        step.timer.begin()
        batch = draw_batch(step.rows)
        if self._leads:
            parts = self._draws.run(step.forward.hidden, batch, draw_masks(step.plan, step.rows, masks))
            ids = parts[0].ids if len(parts) == 1 else torch.cat([part.ids for part in parts])
            self._sampling.learn(batch, ids)
            step.ids = HostCopy(self._group.broadcast(ids))
            first = 0
            for part in parts:
                if part.answer is not None:
                    step.answers.append(PendingAnswer(part.asking + first, part.answer, part.answer.to_host()))
                first += len(part.ids)
        else:
            self._model.logits(step.forward.hidden)
            drawn = torch.empty(len(batch.slots), dtype=torch.int64, device=self._model.device)
            self._sampling.learn(batch, self._group.broadcast(drawn))
        step.timer.end()

    @torch.inference_mode()
    def collect(self) -> StepResult:
        """The oldest step's result; waits for the device."""
        step = self._pending.popleft()
        ids, failures = collect_ids(step)
        self._steps += 1
        forward_us = step.timer.microseconds()
        self._forward_us += forward_us
        return StepResult(
            step=step.plan.step,
            ids=ids.tobytes(),
            logprobs=collect_logprobs(step, ids),
            prompt_logprobs=collect_prompt_logprobs(step),
            failures=[RowFailure(row, message) for row, message in sorted(failures.items())],
            forward_us=forward_us,
        )

    def statistics(self) -> dict[str, float]:
        """Figures for metrics."""
        return {
            "logit_bias_bytes": self._sampling.bias_bytes,
            "penalty_bytes": self._sampling.penalty_bytes,
            "kv_bytes": self.capacity.kv_bytes,
            "weight_bytes": self.capacity.weight_bytes,
            "steps": self._steps,
            "forward_seconds": self._forward_us / 1e6,
        }

    def close(self) -> None:
        self._pending.clear()


def describe_kernels(config: EngineConfig, model: CausalModel, filters_by: str, graphs: bool) -> dict[str, str]:
    """Which library computes what."""
    known: dict[str, str] = {"attention": config.attention_backend}
    if model.device.type == "cuda":
        known |= choose_ops(model.device, model.dtype).sources
        known |= {"filters": filters_by, "draws": NATIVE}
        known["decode_steps"] = "graphs" if graphs else "single launches"
    return known


def draw_batch(rows: PlanRows) -> DrawBatch:
    """Who draws in a step, and with several draws per row what they are checked against."""
    draw_rows = rows.draw_rows()
    checked_against = None
    if (rows.draws > 1).any():
        offsets = rows.draw_offsets()
        token_ends = numpy.cumsum(rows.new_tokens, dtype=numpy.int64)
        following = numpy.minimum(token_ends[draw_rows] - offsets, len(rows.ids) - 1)
        checked_against = numpy.where(offsets > 0, rows.ids[following], -1).astype(numpy.int64)
    return DrawBatch(rows.slots[draw_rows].astype(numpy.int64), rows.draw_positions(), checked_against)


def draw_masks(plan: BatchPlan, rows: PlanRows, masks: GrammarMasks | None) -> DrawMasks | None:
    """The masks of a step by draw: a masked row's mask holds for each of its draws."""
    if not plan.masked:
        return None
    assert masks is not None, "the plan has masked rows"
    assert masks.step == plan.step, "masks of another step"
    words = parse_words(masks.words, len(plan.masked))
    order = {row: index for index, row in enumerate(plan.masked)}
    draws = [(draw, order[row]) for draw, row in enumerate(rows.draw_rows().tolist()) if row in order]
    pairs = numpy.array(draws, dtype=numpy.int64).reshape(-1, 2)
    return DrawMasks(pairs[:, 0], words[pairs[:, 1]])


def collect_ids(step: PendingStep) -> tuple[NDArray[numpy.int32], dict[int, str]]:
    """What each draw gave ([draws], NOTHING_DRAWN where nothing), and the rows that failed."""
    draw_rows = step.rows.draw_rows()
    ids = numpy.full(len(draw_rows), NOTHING_DRAWN, dtype=numpy.int32)
    failures = dict(step.forward.failures) if step.forward is not None else {}
    if step.spoiled is not None:
        for row in numpy.flatnonzero(step.spoiled.wait()[0].numpy()).tolist():
            failures.setdefault(int(step.rows.rows[row]), NOT_FINITE_MESSAGE)
    if step.ids is not None:
        ids[:] = step.ids.wait()[0].numpy()
        for code, message in UNDRAWN:
            for row in draw_rows[ids == code].tolist():
                failures.setdefault(row, message)
        if failures:
            ids[(ids < 0) | numpy.isin(draw_rows, list(failures))] = NOTHING_DRAWN
        else:
            ids[ids < 0] = NOTHING_DRAWN
    return ids, failures


def collect_logprobs(step: PendingStep, ids: NDArray[numpy.int32]) -> list[IdLogprobs | None] | None:
    """One entry per draw that asked and drew, None for the others; None if nobody asked."""
    if not step.answers:
        return None
    spread: list[IdLogprobs | None] = [None] * len(ids)
    for pending in step.answers:
        for draw, entry in zip(pending.asking.tolist(), pending.answer.entries(pending.copy), strict=True):
            if ids[draw] >= 0:
                spread[draw] = entry
    return spread


def collect_prompt_logprobs(step: PendingStep) -> list[list[IdLogprobs]]:
    """What `BatchPlan.prompt_logprobs` asks for, in its order; nothing of a row that failed."""
    found = step.forward.prompt_logprobs if step.forward is not None else {}
    return [found.get(row, []) for row in step.plan.prompt_logprobs]
