"""Whether flashinfer's kernels fit a model, told from its configuration alone: the supervisor asks before torch is loaded."""

from collections.abc import Mapping
from typing import Any

HEAD_DIMS = (64, 128, 256)
"""Heads that the kernels are made for: rows of whole 128-byte lines."""

UNSAID_HEAD_DIMS: Mapping[str, int] = {
    "Gemma2ForCausalLM": 256,
    "Gemma3ForCausalLM": 256,
    "Gemma3ForConditionalGeneration": 256,
    "GptOssForCausalLM": 64,
    "Qwen3ForCausalLM": 128,
    "SeedOssForCausalLM": 128,
}
"""Families' head_dim where the configuration is silent and it is not hidden_size over heads."""


def flashinfer_refusal(architecture: str, config: Mapping[str, Any]) -> str | None:
    """Why flashinfer can't attend for this model, or None if it can."""
    if config.get("kv_lora_rank"):
        return "flashinfer has no latent attention here"
    head_dim = head_dim_of(architecture, config)
    if head_dim is not None and head_dim not in HEAD_DIMS:
        return f"flashinfer has no kernels here for heads of {head_dim}"
    return None


def head_dim_of(architecture: str, config: Mapping[str, Any]) -> int | None:
    """None if the configuration is not one that tells."""
    said = config.get("head_dim", UNSAID_HEAD_DIMS.get(architecture))
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if said is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        said = hidden // heads
    return said if isinstance(said, int) else None
