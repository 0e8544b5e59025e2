"""Which attention backends there are."""

from collections.abc import Callable

import torch

from model_runner.attention.flashinfer_backend import FlashInferAttention
from model_runner.attention.interface import AttentionBackend
from model_runner.attention.torch_backend import TorchAttention
from model_runner.kernels.decoder import CpuPages

BACKENDS: dict[str, Callable[[torch.device, torch.dtype], AttentionBackend]] = {
    "torch": TorchAttention,
    "cpu": lambda device, dtype: CpuPages(),
    "flashinfer": FlashInferAttention,
}


def build_attention(name: str, device: torch.device, dtype: torch.dtype) -> AttentionBackend:
    """The backend named in the configuration; ValueError if there is none of that name."""
    if name not in BACKENDS:
        raise ValueError(f"--attention-backend {name} is not available here; available: {', '.join(BACKENDS)}")
    return BACKENDS[name](device, dtype)
