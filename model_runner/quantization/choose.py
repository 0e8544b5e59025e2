"""Which form a deployment's linears take."""

from model_runner.quantization.forms import DenseForm, FormFactory


def choose_form(quantization: str, device: str) -> FormFactory:
    """The factory for `EngineConfig.quantization`; ValueError naming the value if this device has no such form."""
    if quantization == "none":
        return DenseForm
    hint = "; --attention-backend cpu computes on quantised weights" if device == "cpu" else ""
    raise ValueError(f"--quantization {quantization} has no kernels on device {device!r} with this backend{hint}")
