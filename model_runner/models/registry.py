"""From a resolved configuration to a model with its weights loaded."""

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from model_runner.kernels.build import UnsupportedByKernelsError, build_cpu_decoder
from model_runner.layers.declarations import ModelDeclaration
from model_runner.layers.ops import choose_ops
from model_runner.layers.parallel import Communicator, SingleRank
from model_runner.loading.gguf_source import GgufSource
from model_runner.loading.open_source import open_source
from model_runner.loading.source import WeightSource
from model_runner.loading.weights import LoadState, OnProgress, Weights
from model_runner.models.catalogue import UnsupportedArchitectureError, find_architecture
from model_runner.models.config_reader import ConfigReader
from model_runner.models.decoder import Decoder, refuse_leftovers
from model_runner.quantization.choose import choose_form
from model_runner.quantization.forms import DenseForm
from model_runner.step import CausalModel
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.environment import read_environment

TEXT_PREFIXES = (
    ("language_model.model.", "language_model.lm_head"),
    ("model.language_model.", "lm_head"),
    ("model.", "lm_head"),
)
"""Where checkpoints that also read images keep the body and head of their text model."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
    if config.model_impl == "transformers":
        if world > 1:
            raise UnsupportedArchitectureError(
                f"architecture {config.model.architecture!r}: --model-impl transformers runs on one rank, --tp-size is {world}"
            )
        # Imported here alone: transformers' modelling code costs seconds, which native models don't pay.
        library = importlib.import_module("model_runner.models.transformers_model")
        foreign: CausalModel = library.load_transformers_model(config, device, DTYPES[config.dtype], on_progress)
        return foreign
    find_declaration(config.model.architecture)  # before any file is opened
    source = open_source(config.model)
    try:
        declared = declare(config.model, source)
        if config.attention_backend == "cpu":
            return _on_cpu_engine(config, declared, source, shared, on_progress)
        state = LoadState(
            source=source,
            dtype=DTYPES[config.dtype],
            device=device,
            communicator=shared,
            make_form=choose_form(config.quantization, config.device),
            on_progress=on_progress,
            ops=choose_ops(device, DTYPES[config.dtype]),
        )
        with torch.inference_mode():
            return Decoder(Weights(state), declared)
    finally:
        source.close()


def _on_cpu_engine(
    config: EngineConfig,
    declared: ModelDeclaration,
    source: WeightSource,
    communicator: Communicator,
    on_progress: OnProgress | None,
) -> CausalModel:
    if communicator.world > 1:
        raise UnsupportedByKernelsError("--attention-backend cpu runs on one rank; use torch with --tp-size")
    # What is to be quantised is read in full precision; everything else in the dtype that it stays in.
    dtype = torch.float32 if config.quantization != "none" else DTYPES[config.dtype]
    state = LoadState(source, dtype, torch.device("cpu"), communicator, DenseForm, on_progress)
    weights = Weights(state)
    folder = read_environment().cache_folder.expanduser() / "kernels"
    with torch.inference_mode():
        made = build_cpu_decoder(
            weights, declared, config.quantization, config.model.context_length, config.threads, folder
        )
    refuse_leftovers(weights, declared)
    return made


def find_declaration(architecture: str) -> Callable[[ConfigReader, int], ModelDeclaration]:
    """The family's function that declares this architecture."""
    entry = find_architecture(architecture)
    if entry is None:
        raise UnsupportedArchitectureError(
            f"architecture {architecture!r} has no native declaration (--list-models shows those that have); "
            "--model-impl transformers may serve it"
        )
    module = importlib.import_module(f"model_runner.models.{entry.module}")
    family: Callable[[ConfigReader, int], ModelDeclaration] = getattr(module, entry.declare)
    return family


def declare(model: ModelDescription, source: WeightSource) -> ModelDeclaration:
    """What the configuration asks for, with every value in it accounted for."""
    values = dict(model.config.get("text_config") or model.config)
    scaling = values.get("rope_scaling")
    if isinstance(scaling, dict) and isinstance(source, GgufSource):
        values["rope_scaling"] = _with_stored_factors(scaling, source)
    reader = ConfigReader(values, model.architecture)
    declared = find_declaration(model.architecture)(reader, model.context_length)
    reader.finish()
    return _text_part(declared, source) if "text_config" in model.config else declared


def _text_part(declared: ModelDeclaration, source: WeightSource) -> ModelDeclaration:
    """The declaration under the names that a checkpoint with other modalities uses; tensors of those are left unread."""
    for prefix, head in TEXT_PREFIXES:
        if source.has(f"{prefix}embed_tokens.weight"):
            return replace(declared, prefix=prefix, head=head, unused_tensors=(rf"(?!{re.escape(prefix)}).*",))
    return declared


def _with_stored_factors(scaling: dict[str, Any], source: GgufSource) -> dict[str, Any]:
    """Rope factors that a GGUF file holds as tensors, put where other checkpoints have them: in the configuration."""
    if scaling.get("rope_type") == "gguf_factors":
        return {"rope_type": "divided", "divisors": source.vector(scaling["tensor"])}
    if scaling.get("rope_type") == "gguf_longrope":
        long_name, short_name = scaling["tensors"]
        factors = {"long_factor": source.vector(long_name), "short_factor": source.vector(short_name)}
        return {"rope_type": "longrope", "attention_factor": scaling.get("attention_factor")} | factors
    return scaling
