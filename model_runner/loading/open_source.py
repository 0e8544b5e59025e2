"""Which source a deployment's weights come from."""

from pathlib import Path

from model_runner.loading.dummy_source import DummySource
from model_runner.loading.gguf_source import GgufSource
from model_runner.loading.safetensors_source import SafetensorsSource
from model_runner.loading.source import WeightSource
from runtime.engine_config import ModelDescription


def open_source(model: ModelDescription) -> WeightSource:
    """The checkpoint, opened; LoadError if its files are missing, truncated or of an unknown kind."""
    if model.format == "dummy":
        return DummySource()
    if model.format == "gguf":
        return GgufSource(Path(model.path))
    return SafetensorsSource(Path(model.path))
