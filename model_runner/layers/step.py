"""What every layer reads in one step."""

from dataclasses import dataclass

import torch

from model_runner.attention.interface import AttentionBackend
from model_runner.step import StepInputs


@dataclass(frozen=True)
class LayerStep:
    """`tables[i]` are the cosines and sines of the model's i-th rotary."""

    inputs: StepInputs
    attention: AttentionBackend
    tables: list[tuple[torch.Tensor, torch.Tensor]]
