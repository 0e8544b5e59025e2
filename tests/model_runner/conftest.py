"""A model of two layers that fits in a page, its dense oracle, and a driver that plans as a scheduler would."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from model_runner.attention.interface import AttentionBackend, AttentionSpec, LayerKV
from model_runner.attention.torch_backend import TorchAttention
from model_runner.runner import ModelRunner
from model_runner.step import StepInputs
from protocol.ids import pack_ids, unpack_ids
from protocol.plan import LAST_SAMPLED, BatchPlan, ForcedTokens, GrammarMasks, PageDelta, RowStart, StepResult
from protocol.sampling import SamplingParameters
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.server_args import ServerArgs

PAGE_SIZE = 4
HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 4, 2, 8, 32


class TinyModel:
    """Attention layers and nothing else; positions are added to embeddings."""

    def __init__(self, vocab_size: int = 97, layers: int = 2) -> None:
        generator = torch.Generator().manual_seed(7)

        def weights(*shape: int) -> torch.Tensor:
            drawn: torch.Tensor = torch.randn(*shape, generator=generator) / shape[-1] ** 0.5
            return drawn

        self.vocab_size = vocab_size
        self.dtype = torch.float32
        self.device = torch.device("cpu")
        self.weight_bytes = 0
        self.layer_specs = [LayerKV(KV_HEADS, HEAD_DIM, HEAD_DIM)] * layers
        self.embedding = weights(vocab_size, HIDDEN) * 6
        self.head = weights(vocab_size, HIDDEN) * 4
        self.layers = [
            (
                weights(HEADS * HEAD_DIM, HIDDEN),
                weights(KV_HEADS * HEAD_DIM, HIDDEN),
                weights(KV_HEADS * HEAD_DIM, HIDDEN),
            )
            for _ in range(layers)
        ]
        self.spec = AttentionSpec(scale=HEAD_DIM**-0.5, v_head_dim=HEAD_DIM)
        self.most_tokens = self.most_draws = 10**9
        self.forwards: list[int] = []

    def embed(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        columns = torch.arange(HIDDEN, dtype=torch.float32)
        return self.embedding[ids] + torch.sin(positions[:, None].float() / (1.0 + columns))

    def forward(self, inputs: StepInputs, attention: AttentionBackend) -> torch.Tensor:
        self.forwards.append(inputs.tokens)
        if inputs.tokens > self.most_tokens:
            raise torch.OutOfMemoryError("pretended")
        hidden = self.embed(inputs.ids, inputs.positions)
        for index, (query, key, value) in enumerate(self.layers):
            attended = attention.attend(
                index,
                (hidden @ query.T).view(-1, HEADS, HEAD_DIM),
                (hidden @ key.T).view(-1, KV_HEADS, HEAD_DIM),
                (hidden @ value.T).view(-1, KV_HEADS, HEAD_DIM),
                self.spec,
            )
            hidden = hidden + attended.flatten(1)
        return hidden

    def logits(self, hidden_rows: torch.Tensor) -> torch.Tensor:
        if len(hidden_rows) > self.most_draws:
            raise torch.OutOfMemoryError("pretended")
        return hidden_rows @ self.head.T

    def dense_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """The oracle: the whole sequence at once, no cache: [tokens, vocab]."""
        hidden = self.embed(torch.tensor(ids), torch.arange(len(ids)))
        causal = torch.tril(torch.ones(len(ids), len(ids), dtype=torch.bool))
        for query, key, value in self.layers:
            queries = (hidden @ query.T).view(-1, HEADS, HEAD_DIM).transpose(0, 1)
            keys = (hidden @ key.T).view(-1, KV_HEADS, HEAD_DIM).transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0)
            values = (hidden @ value.T).view(-1, KV_HEADS, HEAD_DIM).transpose(0, 1)
            scores = queries @ keys.transpose(1, 2) * self.spec.scale
            weights = scores.masked_fill(~causal, -torch.inf).softmax(-1)
            attended = weights @ values.repeat_interleave(HEADS // KV_HEADS, 0)
            hidden = hidden + attended.transpose(0, 1).flatten(1)
        return hidden @ self.head.T

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(self.dense_logits(ids)[-1].argmax()))
        return ids[len(prompt) :]


@dataclass
class Row:
    """One sequence of the driver."""

    slot: int
    prompt: list[int]
    computed: int = 0
    outputs: list[int] = field(default_factory=list)


class Driver:
    """Plans steps for a runner as a scheduler would: every row goes on by its next chunk or token, and draws at its end."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.rows: dict[int, Row] = {}
        self.steps = 0
        self.free_pages = list(range(runner.capacity.pages - 1, 0, -1))
        self._sampling: dict[int, SamplingParameters] = {}
        self._starts: list[RowStart] = []
        self._released: list[int] = []
        self._forced: list[ForcedTokens] = []
        self._deltas: list[PageDelta] = []
        self.pages: dict[int, list[int]] = {}

    def add(
        self,
        slot: int,
        prompt: Sequence[int],
        sampling: SamplingParameters,
        seed: int = 0,
        end_ids: tuple[int, ...] = (),
        outputs: Sequence[int] = (),
    ) -> Row:
        """`outputs`: what a retracted or resumed sequence has already."""
        self._sampling[slot] = sampling
        self._starts.append(RowStart(slot, sampling, seed, pack_ids(prompt), pack_ids(outputs), end_ids))
        self.rows[slot] = Row(slot, list(prompt), 0, list(outputs))
        self.pages[slot] = []
        return self.rows[slot]

    def release(self, slot: int) -> None:
        self._released.append(slot)
        self.free_pages += self.pages.pop(slot)
        del self.rows[slot]

    def force(self, slot: int, ids: Sequence[int]) -> None:
        self._forced.append(ForcedTokens(slot, pack_ids(ids)))
        self.rows[slot].outputs += ids

    def plan(self, chunk: int = 10**6, masked: Sequence[int] = (), device_ids: bool = False) -> BatchPlan:
        rows = list(self.rows.values())
        ids: list[int] = []
        new_tokens, draws, asking = [], [], []
        for index, row in enumerate(rows):
            known = row.prompt + row.outputs
            fed = known[row.computed : row.computed + chunk]
            new_tokens.append(len(fed))
            draws.append(int(row.computed + len(fed) == len(known)))
            ids += [LAST_SAMPLED] if device_ids and len(fed) == 1 and row.outputs else fed
            self._grow(row.slot, row.computed + len(fed))
            if row.computed + 1 < len(row.prompt):
                asking.append(index)
        plan = BatchPlan(
            step=self.steps,
            slots=pack_ids(row.slot for row in rows),
            new_tokens=pack_ids(new_tokens),
            context=pack_ids(row.computed for row in rows),
            draws=pack_ids(draws),
            ids=pack_ids(ids),
            starts=self._starts,
            released=self._released,
            forced=self._forced,
            page_deltas=self._deltas,
            masked=list(masked),
            prompt_logprobs=[index for index in asking if self._sampling[rows[index].slot].prompt_logprobs is not None],
        )
        self.steps += 1
        self._starts, self._released, self._forced, self._deltas = [], [], [], []
        return plan

    def step(self, chunk: int = 10**6, masks: dict[int, bytes] | None = None, device_ids: bool = False) -> StepResult:
        """`masks`: by index of the row."""
        plan = self.plan(chunk, sorted(masks or {}), device_ids)
        self.runner.launch(plan)
        words = b"".join(masks[row] for row in plan.masked) if masks else b""
        self.runner.sample(GrammarMasks(plan.step, words) if masks else None)
        result = self.runner.collect()
        self.learn(plan, result)
        return result

    def learn(self, plan: BatchPlan, result: StepResult) -> None:
        drawn = iter(unpack_ids(result.ids))
        for slot, new, draws in zip(*map(unpack_ids, (plan.slots, plan.new_tokens, plan.draws)), strict=True):
            row = self.rows[slot]
            ids = [next(drawn) for _ in range(draws)]
            if ids == [-1]:
                # Nothing was drawn: the last token is fed again.
                row.computed += new - 1
                continue
            row.computed += new
            row.outputs += ids

    def run(self, steps: int, **options: Any) -> dict[int, list[int]]:
        for _ in range(steps):
            self.step(**options)
        return {slot: row.outputs for slot, row in self.rows.items()}

    def _grow(self, slot: int, tokens: int) -> None:
        pages = self.pages[slot]
        first = len(pages)
        # Far apart on purpose: neighbours would hide a wrong page table.
        while len(pages) * self.runner.capacity.page_size < tokens:
            pages.append(self.free_pages.pop(len(self.free_pages) // 2))
        if len(pages) > first:
            self._deltas.append(PageDelta(slot, first, pack_ids(pages[first:])))


def make_config(**changes: Any) -> EngineConfig:
    description = ModelDescription(
        name="tiny",
        path="tiny",
        format="dummy",
        served_names=("tiny",),
        architecture="Tiny",
        config={},
        context_length=256,
        vocab_size=97,
        eos_token_ids=(),
        bos_token_id=None,
        tokenizer_file="",
    )
    settings: dict[str, Any] = {
        "args": ServerArgs(),
        "model": description,
        "run_dir": "",
        "device": "cpu",
        "dtype": "float32",
        "quantization": "none",
        "attention_backend": "torch",
        "model_impl": "native",
        "page_size": PAGE_SIZE,
        "kv_tokens": 2048,
        "max_running_requests": 32,
        "max_batch_tokens": 512,
        "chunked_prefill_size": 512,
        "lookahead": 0,
        "threads": 1,
        "tool_call_parser": None,
        "reasoning_parser": None,
        "version": "0",
    }
    return EngineConfig(**(settings | changes))


@pytest.fixture
def tiny_model() -> TinyModel:
    return TinyModel()


@pytest.fixture(scope="session")
def engine_config() -> Callable[..., EngineConfig]:
    """Makes a configuration from what differs."""
    return make_config


@pytest.fixture
def driver(tiny_model: TinyModel) -> Driver:
    """A driver of a runner of `tiny_model`."""
    attention = TorchAttention(tiny_model.device, tiny_model.dtype)
    return Driver(ModelRunner(make_config(), model=tiny_model, attention=attention))


@pytest.fixture(scope="session")
def drive() -> Callable[[ModelRunner], Driver]:
    return Driver
