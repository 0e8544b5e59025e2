"""From a resolved configuration to a model with its weights loaded."""

import importlib
from collections.abc import Callable

import torch

from model_runner.layers.declarations import ModelDeclaration
from model_runner.layers.parallel import Communicator, SingleRank
from model_runner.loading.open_source import open_source
from model_runner.loading.weights import LoadState, OnProgress, Weights
from model_runner.models.catalogue import find_architecture
from model_runner.models.config_reader import ConfigReader
from model_runner.models.decoder import Decoder
from model_runner.quantization.choose import choose_form
from model_runner.step import CausalModel
from runtime.engine_config import EngineConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class UnsupportedArchitectureError(ValueError):
    """No declaration covers the checkpoint's architecture; the message names it and what may help."""


def build_model(
    config: EngineConfig,
    rank: int = 0,
    world: int = 1,
    on_progress: OnProgress | None = None,
    communicator: Communicator | None = None,
) -> CausalModel:
    """The model with this rank's weights on its device.

    Raises UnsupportedArchitectureError, ConfigError (a value the declaration can't do) and LoadError (the files).
    """
    shared = communicator or SingleRank()
    assert (shared.rank, shared.world) == (rank, world)
    device = (
        torch.device(config.device, torch.cuda.current_device()) if config.device == "cuda" else torch.device("cpu")
    )
    declared = declare(config)
    source = open_source(config.model)
    try:
        state = LoadState(
            source=source,
            dtype=DTYPES[config.dtype],
            device=device,
            communicator=shared,
            make_form=choose_form(config.quantization, config.device),
            on_progress=on_progress,
        )
        with torch.inference_mode():
            return Decoder(Weights(state), declared)
    finally:
        source.close()


def declare(config: EngineConfig) -> ModelDeclaration:
    """What the configuration asks for, with every value in it accounted for."""
    model = config.model
    entry = find_architecture(model.architecture)
    if entry is None:
        raise UnsupportedArchitectureError(
            f"architecture {model.architecture!r} has no native declaration; --model-impl transformers may serve it, "
            "--list-models shows what is native"
        )
    module = importlib.import_module(f"model_runner.models.{entry.module}")
    declare_family: Callable[[ConfigReader, int], ModelDeclaration] = getattr(module, entry.declare)
    reader = ConfigReader(model.config, model.architecture)
    declared = declare_family(reader, model.context_length)
    reader.finish()
    return declared
