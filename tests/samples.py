"""A configuration for tests, without a model behind it."""

from typing import Any

from runtime.engine_config import EngineConfig, ModelDescription
from runtime.server_args import ServerArgs


def make_model(**changes: Any) -> ModelDescription:
    values: dict[str, Any] = {
        "name": "fake",
        "path": "",
        "format": "dummy",
        "served_names": ("fake",),
        "architecture": "Fake",
        "config": {},
        "context_length": 16,
        "vocab_size": 8,
        "eos_token_ids": (0,),
        "bos_token_id": None,
        "tokenizer_file": "",
    }
    return ModelDescription(**(values | changes))


def make_config(args: ServerArgs, **model: Any) -> EngineConfig:
    return config_of(args, make_model(**model))


def config_of(args: ServerArgs, model: ModelDescription, **changes: Any) -> EngineConfig:
    """Small numbers on the CPU, and the changes."""
    values: dict[str, Any] = {
        "run_dir": "",
        "device": "cpu",
        "dtype": "float32",
        "quantization": "none",
        "attention_backend": "torch",
        "model_impl": "native",
        "page_size": 16,
        "kv_tokens": 64,
        "max_running_requests": 4,
        "max_batch_tokens": 16,
        "chunked_prefill_size": 16,
        "lookahead": 0,
        "threads": 3,
        "tool_call_parser": None,
        "reasoning_parser": None,
        "version": "0",
        "decisions": (("device = cpu", "a test"),),
    }
    return EngineConfig(args=args, model=model, **(values | changes))
