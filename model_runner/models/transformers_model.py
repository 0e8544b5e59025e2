"""Any decoder that transformers can run over a foreign attention function: its own modelling code over Candor's pages.

All rows of a step are fed as one sequence with explicit positions; only attention looks at more than one token, and it
asks the paged backend, which knows the rows. What can't be served so is refused while loading, by name.
"""

import copy
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from model_runner.attention.interface import AttentionBackend, LayerKV
from model_runner.loading.errors import LoadError
from model_runner.loading.weights import OnProgress
from model_runner.models.catalogue import UnsupportedArchitectureError
from model_runner.models.transformers_attention import IMPLEMENTATION, PagedCall, ProbeAttention, register
from model_runner.step import StepInputs
from runtime.engine_config import EngineConfig

logger = logging.getLogger(__name__)

CAUSAL_DECODERS = frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
LAYER_TYPES = {"full_attention", "sliding_attention"}
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Scalings that transformers recomputes from the longest sequence of a batch."""


class TransformersModel:
    """A `CausalModel` round a transformers module."""

    def __init__(self, module: Any, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self._module = module
        self._base = getattr(module, module.base_model_prefix)
        self._head = _head_alone(module)
        self._numbers: dict[int, int] = {}
        self.vocab_size = int(module.get_output_embeddings().weight.shape[0])
        self.hidden_size = int(module.get_input_embeddings().weight.shape[1])
        self.weight_bytes = sum(tensor.numel() * tensor.element_size() for tensor in module.parameters())
        self.layer_specs: Sequence[LayerKV] = self._probe()

    def forward(self, inputs: StepInputs, attention: AttentionBackend) -> torch.Tensor:
        return self._run(inputs.ids, inputs.positions, attention)

    def logits(self, hidden_rows: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._head(inputs_embeds=hidden_rows[None], use_cache=False).logits[0]
        # The copy keeps the contract: a fresh tensor, also where the head returns a view in float32.
        return logits.to(torch.float32, copy=True)

    def _run(self, ids: torch.Tensor, positions: torch.Tensor, attention: AttentionBackend) -> torch.Tensor:
        output = self._base(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=False,
            candor=PagedCall(attention, self._numbers),
        )
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def _probe(self) -> list[LayerKV]:
        """Runs two tokens to see which layers attend, and over what."""
        probe = ProbeAttention()
        two = torch.arange(2, device=self.device)
        try:
            with torch.inference_mode():
                self.logits(self._run(two, two, probe))
        except (TypeError, ValueError, AttributeError, KeyError, RuntimeError) as error:
            raise _refusal(type(self._module).__name__, str(error)) from error
        config = self._module.config.get_text_config()
        if len(probe.found) != config.num_hidden_layers:
            raise _refusal(
                type(self._module).__name__,
                f"{len(probe.found)} of its {config.num_hidden_layers} layers attend over a key-value cache",
            )
        slides = "sliding_attention" in (getattr(config, "layer_types", None) or ())
        if slides and not any(layer.sliding_window for layer in probe.found.values()):
            raise _refusal(type(self._module).__name__, "its sliding layers don't say so to their attention function")
        return [probe.found[number] for number in sorted(probe.found)]


class _OnlyHidden(BaseModelOutput):  # type: ignore[misc]  # transformers is untyped
    """A body's output in which everything but the hidden state is None: heads look for many fields by name."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class _Echo(torch.nn.Module):
    """Stands in for the body of a model: returns what it is given as the last hidden state."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> _OnlyHidden:
        return _OnlyHidden(last_hidden_state=inputs_embeds)


def _head_alone(module: Any) -> Any:
    """The module without its body: its own code from hidden states to logits, scaling and soft caps included."""
    head = copy.copy(module)
    head._modules = dict(module._modules) | {module.base_model_prefix: _Echo()}
    return head


def load_transformers_model(
    config: EngineConfig, device: torch.device, dtype: torch.dtype, on_progress: OnProgress | None
) -> TransformersModel:
    """The model with its weights on the device; UnsupportedArchitectureError or LoadError in one sentence."""
    name = config.model.architecture
    module_class = getattr(transformers, name, None)
    settings = _settings(config)
    if not config.args.trust_remote_code:
        if module_class is None:
            raise _refusal(name, f"transformers {transformers.__version__} has no such class")
        if name not in CAUSAL_DECODERS or not module_class._supports_attention_backend:
            raise _refusal(
                name, "transformers' code for it takes no foreign attention function or is no causal decoder"
            )
    _check(name, settings.get_text_config(), config.model.context_length)
    register()
    transformers.utils.logging.disable_progress_bar()  # start-up has a bar of its own
    logger.info("%s runs on transformers' own modelling code over paged attention", name)
    total = sum(file.stat().st_size for file in Path(config.model.path).glob("*.safetensors")) or 1
    if on_progress is not None:
        on_progress("loading weights", 0, total)
    options: dict[str, Any] = {"attn_implementation": IMPLEMENTATION, "dtype": dtype}
    if config.args.trust_remote_code:
        options["trust_remote_code"] = True
    try:
        if config.model.format == "dummy":
            torch.manual_seed(0)
            module = transformers.AutoModelForCausalLM.from_config(settings, **options)
        else:
            module = transformers.AutoModelForCausalLM.from_pretrained(config.model.path, config=settings, **options)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise LoadError(f"transformers can't load {config.model.path}: {error}") from error
    if on_progress is not None:
        on_progress("loading weights", total, total)
    return TransformersModel(module.eval().requires_grad_(False).to(device), device, dtype)


def _settings(config: EngineConfig) -> Any:
    """transformers' configuration object of the checkpoint."""
    if config.model.format == "gguf":
        raise _refusal(config.model.architecture, "GGUF files load into native declarations only")
    if config.model.config.get("quantization_config"):
        raise _refusal(config.model.architecture, "quantised checkpoints load into native declarations only")
    if config.quantization != "none":
        raise _refusal(config.model.architecture, f"--quantization {config.quantization} needs a native declaration")
    try:
        if config.args.trust_remote_code:
            return transformers.AutoConfig.from_pretrained(config.model.path, trust_remote_code=True)
        values = dict(config.model.config)
        return transformers.AutoConfig.for_model(values.pop("model_type", ""), **values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _refusal(config.model.architecture, f"transformers can't read its configuration: {error}") from error


def _check(name: str, settings: Any, context_tokens: int) -> None:
    """Refuses configurations whose outputs would depend on the batch, or on more than attention over pages."""
    kinds = set(getattr(settings, "layer_types", None) or ()) - LAYER_TYPES
    if kinds:
        raise _refusal(name, f"config key 'layer_types' has {', '.join(sorted(kinds))}")
    parameters = getattr(settings, "rope_parameters", None) or {}
    if parameters.get("rope_type") in LENGTH_DEPENDENT_ROPE:
        trained = parameters.get("original_max_position_embeddings") or settings.max_position_embeddings
        if context_tokens > trained:
            raise _refusal(
                name,
                f"rope type {parameters['rope_type']!r} depends on the length of the batch beyond {trained} tokens; "
                f"--context-length {trained} would do",
            )


def _refusal(name: str, reason: str) -> UnsupportedArchitectureError:
    return UnsupportedArchitectureError(f"architecture {name!r} can't run with --model-impl transformers: {reason}")
