"""What every layer reads in one step."""

from dataclasses import dataclass

from model_runner.attention.interface import AttentionBackend
from model_runner.layers.rotary import RotaryTable
from model_runner.step import StepInputs


@dataclass(frozen=True)
class LayerStep:
    """`tables[i]` is that of the model's i-th rotary."""

    inputs: StepInputs
    attention: AttentionBackend
    tables: list[RotaryTable]
