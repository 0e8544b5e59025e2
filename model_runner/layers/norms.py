"""Normalisation layers. Statistics are float32 whatever the activations are."""

import torch

from model_runner.layers.ops import AddRmsNorm, FusedOps, RmsNorm
from model_runner.layers.parallel import Communicator
from model_runner.loading.weights import Weights


class RMSNorm:
    """Root-mean-square norm. `sum_over` makes the statistics those of a vector of `width` that is split over ranks."""

    def __init__(
        self, weight: torch.Tensor, epsilon: float, sum_over: Communicator | None = None, width: int = 0
    ) -> None:
        self.weight = weight  # [width] float32
        self.epsilon = epsilon
        self.sum_over = sum_over if sum_over is not None and sum_over.world > 1 else None
        self.width = width

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        wide = inputs.to(torch.float32)
        if self.sum_over is None:
            mean = wide.pow(2).mean(-1, keepdim=True)
        else:
            squares = self.sum_over.all_reduce(wide.pow(2).sum(-1, keepdim=True))
            mean = squares / self.width
        return (wide * torch.rsqrt(mean + self.epsilon) * self.weight).to(inputs.dtype)

    def add(self, inputs: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(inputs + residual), inputs + residual). Both arguments are used up: a fused kernel overwrites them."""
        summed = inputs + residual
        return self(summed), summed


class FusedRMSNorm(RMSNorm):
    """The same norm by kernels that want the gain in the dtype of the activations."""

    def __init__(self, norm: RMSNorm, narrow: torch.Tensor, plain: RmsNorm, adding: AddRmsNorm) -> None:
        super().__init__(norm.weight, norm.epsilon)
        self._narrow = narrow
        self._plain = plain
        self._adding = adding

    @classmethod
    def of(cls, norm: RMSNorm, ops: FusedOps, dtype: torch.dtype) -> RMSNorm:
        """Fused where there are kernels, and where narrowing the gain loses nothing (Gemma's gains about one would)."""
        narrow = norm.weight.to(dtype)
        if ops.rms_norm is None or ops.add_rms_norm is None or not torch.equal(narrow.to(torch.float32), norm.weight):
            return norm
        return cls(norm, narrow, ops.rms_norm, ops.add_rms_norm)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._plain(inputs.contiguous(), self._narrow, self.epsilon)

    def add(self, inputs: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, residual = inputs.contiguous(), residual.contiguous()
        self._adding(inputs, residual, self._narrow, self.epsilon)
        return inputs, residual


def rms_norm(weights: Weights, name: str, width: int, epsilon: float, offset: float = 0.0) -> RMSNorm:
    """The norm whose gain is `offset` + the stored weight (Gemma stores gains around zero)."""
    gain = weights.tensor(f"{name}.weight", (width,), dtype=torch.float32)
    norm = RMSNorm(gain + offset if offset else gain, epsilon)
    return FusedRMSNorm.of(norm, weights.state.ops, weights.state.dtype)
