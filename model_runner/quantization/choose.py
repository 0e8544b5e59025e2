"""Which form a deployment's linears take."""

from model_runner.quantization.forms import DenseForm, FormFactory
from model_runner.quantization.fp8 import fp8_forms, import_fp8_kernels


def choose_form(quantization: str, device: str) -> FormFactory:
    """The factory for `EngineConfig.quantization`; ValueError naming the value if this device has no such form."""
    if quantization == "none":
        return DenseForm
    if quantization == "fp8" and device == "cuda":
        return fp8_forms(import_fp8_kernels())
    hint = "; --attention-backend cpu computes on quantised weights" if device == "cpu" else ""
    raise ValueError(f"--quantization {quantization} has no kernels on device {device!r} with this backend{hint}")
