"""Fused operations and who computes each: sgl_kernel or flashinfer on CUDA where they are installed, torch elsewhere."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from model_runner.layers.rotary import rotate
from model_runner.layers.rotary_kernels import ROTATIONS, Rotate

RmsNorm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
"""(inputs [tokens, width], gain [width] of the same dtype, epsilon) -> normed, a fresh tensor."""

AddRmsNorm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], None]
"""(inputs, residual, gain, epsilon), in place: residual becomes inputs + residual, inputs the norm of that."""

Gate = Callable[[torch.Tensor], torch.Tensor]
"""gate_up [tokens, 2 * width] -> activation(gate) * up [tokens, width]."""

NATIVE = "torch"


@dataclass(frozen=True)
class FusedOps:
    """Kernels that layers use where they have one; None and missing entries mean the layer's own torch code."""

    rms_norm: RmsNorm | None = None
    add_rms_norm: AddRmsNorm | None = None
    gates: Mapping[str, Gate] = field(default_factory=dict)
    """By the activation's name in configurations."""
    rotate: Rotate = rotate
    sources: Mapping[str, str] = field(default_factory=dict)
    """Which library each operation is computed by, for people."""


TORCH_OPS = FusedOps()

ALIKE = ("rmsnorm", "fused_add_rmsnorm", "silu_and_mul", "gelu_tanh_and_mul", "gelu_and_mul")
"""Operations that both libraries have under one name, with the same arguments."""

OPERATIONS = (*ALIKE, "rotary")
ACTIVATION_GATES = {
    "silu": "silu_and_mul",
    "swish": "silu_and_mul",
    "gelu": "gelu_and_mul",
    "gelu_pytorch_tanh": "gelu_tanh_and_mul",
    "gelu_new": "gelu_tanh_and_mul",
}


def choose_ops(device: torch.device, dtype: torch.dtype) -> FusedOps:
    """The best of what is installed. Without the libraries a GPU still serves, more slowly, and the start says so."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return FusedOps(sources=dict.fromkeys(OPERATIONS, NATIVE))
    return table_of({"sgl_kernel": import_sgl_kernel(), "flashinfer": import_flashinfer()})


def table_of(libraries: Mapping[str, Any]) -> FusedOps:
    """Each operation from the first library that has it; a library that is not installed is None."""
    found: dict[str, Callable[..., Any]] = {}
    sources = dict.fromkeys(OPERATIONS, NATIVE)
    for name, library in libraries.items():
        for operation in ALIKE:
            function = getattr(library, operation, None)
            if function is not None and operation not in found:
                found[operation], sources[operation] = function, name
        function, rotation = ROTATIONS[name]
        if "rotary" not in found and hasattr(library, function):
            found["rotary"], sources["rotary"] = rotation(library), name
    return FusedOps(
        rms_norm=found.get("rmsnorm"),
        add_rms_norm=found.get("fused_add_rmsnorm"),
        gates={name: found[operation] for name, operation in ACTIVATION_GATES.items() if operation in found},
        rotate=found.get("rotary", rotate),
        sources=sources,
    )


def import_sgl_kernel() -> Any:
    """The library, or None where it is not installed or not made for this GPU."""
    try:
        import sgl_kernel
    except (ImportError, OSError):
        return None
    return sgl_kernel


def import_flashinfer() -> Any:
    """The library, or None where it is not installed."""
    try:
        import flashinfer
    except (ImportError, OSError):
        return None
    return flashinfer
