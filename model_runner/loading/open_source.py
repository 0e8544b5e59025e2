"""Which source a deployment's weights come from."""

from pathlib import Path
from typing import Any

from model_runner.loading.dummy_source import DummySource
from model_runner.loading.errors import LoadError
from model_runner.loading.gguf_source import GgufSource
from model_runner.loading.quantized_source import QuantizedSource
from model_runner.loading.safetensors_source import SafetensorsSource
from model_runner.loading.schemes.choose import choose_scheme
from model_runner.loading.source import WeightSource
from runtime.engine_config import ModelDescription


def open_source(model: ModelDescription) -> WeightSource:
    """The checkpoint, opened; LoadError if its files are missing, truncated or of an unknown kind."""
    if model.format == "dummy":
        return DummySource()
    if model.format == "gguf":
        return GgufSource(Path(model.path))
    source = SafetensorsSource(Path(model.path))
    settings = quantization_settings(model.config)
    scheme = choose_scheme(settings) if settings else None
    return QuantizedSource(source, scheme) if scheme is not None else source


def quantization_settings(config: dict[str, Any]) -> dict[str, Any] | None:
    """How the checkpoint is quantised, by its own word (the older key belongs to early compressed-tensors)."""
    for holder in (config, config.get("text_config") or {}):
        settings = holder.get("quantization_config") or holder.get("compression_config")
        if settings:
            if not isinstance(settings, dict):
                raise LoadError(f"quantization_config is {settings!r}, not an object")
            return settings
    return None
