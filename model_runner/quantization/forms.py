"""The seam of weight forms, and the dense form, which is plain torch and the oracle of the others' shapes."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional


class WeightForm(Protocol):
    """One linear's weight, ready to multiply. The same arithmetic for any number of rows."""

    @property
    def nbytes(self) -> int: ...

    def apply(self, inputs: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """[..., in_features] -> [..., out_features], in the dtype of `inputs`."""


FormFactory = Callable[[torch.Tensor], WeightForm]
"""Makes a form of a dense weight [out_features, in_features], which it may keep or let go."""


class DenseForm:
    """The weight as it is."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight  # [out_features, in_features]

    @property
    def nbytes(self) -> int:
        return self.weight.numel() * self.weight.element_size()

    def apply(self, inputs: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return functional.linear(inputs, self.weight, bias)
