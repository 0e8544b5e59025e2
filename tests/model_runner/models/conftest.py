"""Drives a model over the reference attention backend, row by row, as the runner would."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from model_runner.attention.torch_backend import TorchAttention
from model_runner.models.registry import build_model
from model_runner.step import CausalModel, StepInputs
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.server_args import ServerArgs

PAGE_SIZE = 4


def engine_config(
    path: Path, config: dict[str, Any], architecture: str, dtype: Any = "float32", **changes: Any
) -> EngineConfig:
    """A resolved configuration that serves the checkpoint on the CPU."""
    format = changes.pop("format", "safetensors")
    model = ModelDescription(
        name=path.name,
        path=str(path),
        format=format,
        served_names=(path.name,),
        architecture=architecture,
        config=config,
        context_length=changes.pop("context_length", config.get("max_position_embeddings", 128)),
        vocab_size=config["vocab_size"],
        eos_token_ids=(2,),
        bos_token_id=1,
        tokenizer_file="",
    )
    values: dict[str, Any] = {
        "args": ServerArgs(),
        "model": model,
        "run_dir": "",
        "device": "cpu",
        "dtype": dtype,
        "quantization": "none",
        "attention_backend": "torch",
        "model_impl": "native",
        "page_size": PAGE_SIZE,
        "kv_tokens": 1024,
        "max_running_requests": 8,
        "max_batch_tokens": 256,
        "chunked_prefill_size": 256,
        "lookahead": 0,
        "threads": 1,
        "tool_call_parser": None,
        "reasoning_parser": None,
        "version": "test",
    }
    return EngineConfig(**(values | changes))


@dataclass
class Row:
    """`ids` are fed at positions `context`...; `pages` is the row's page table."""

    ids: Sequence[int]
    context: int
    pages: Sequence[int]


def step_inputs(rows: Sequence[Row]) -> StepInputs:
    """The rows of one step as tensors, logits wanted at every token."""
    ids, positions, row_of, slots, starts = [], [], [], [], [0]
    for index, row in enumerate(rows):
        for offset, token in enumerate(row.ids):
            position = row.context + offset
            ids.append(token)
            positions.append(position)
            row_of.append(index)
            slots.append(row.pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE)
        starts.append(len(ids))
    lengths = [len(row.ids) for row in rows]
    ends = [row.context + len(row.ids) for row in rows]
    widest = max(-(-end // PAGE_SIZE) for end in ends)
    tables = [
        (list(row.pages[: -(-end // PAGE_SIZE)]) + [0] * widest)[:widest] for row, end in zip(rows, ends, strict=True)
    ]
    return StepInputs(
        ids=torch.tensor(ids),
        positions=torch.tensor(positions),
        row_of_token=torch.tensor(row_of),
        slot_mapping=torch.tensor(slots),
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_lengths=torch.tensor([row.context for row in rows], dtype=torch.int32),
        sequence_lengths=torch.tensor(ends, dtype=torch.int32),
        page_tables=torch.tensor(tables, dtype=torch.int32),
        logits_indices=torch.arange(len(ids)),
        new_tokens_host=numpy.array(lengths, dtype=numpy.int32),
        sequence_lengths_host=numpy.array(ends, dtype=numpy.int32),
        rows=len(rows),
        tokens=len(ids),
        max_query_tokens=max(lengths),
        max_sequence_tokens=max(ends),
        page_size=PAGE_SIZE,
    )


class Rig:
    """A model with a pool of its own."""

    def __init__(self, model: CausalModel, pages: int = 96) -> None:
        self.model = model
        self.attention = TorchAttention(model.device, model.dtype)
        self.attention.make_pool(model.layer_specs, pages, PAGE_SIZE)

    def step(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """Logits of every fed token, row by row."""
        inputs = step_inputs(rows)
        with torch.inference_mode():
            self.attention.prepare(inputs)
            logits = self.model.logits(self.model.forward(inputs, self.attention)[inputs.logits_indices])
        return list(torch.split(logits, [len(row.ids) for row in rows]))

    def whole(self, ids: Sequence[int], first_page: int = 1) -> torch.Tensor:
        """Logits of one prompt in one step."""
        return self.step([Row(ids, 0, range(first_page, first_page + len(ids)))])[0]


@pytest.fixture
def make_config() -> Callable[..., EngineConfig]:
    return engine_config


@pytest.fixture
def make_rig() -> Callable[[EngineConfig], Rig]:
    return lambda config: Rig(build_model(config))


@pytest.fixture
def make_row() -> Callable[..., Row]:
    return Row


@pytest.fixture
def rig_of() -> Callable[[CausalModel], Rig]:
    return Rig
