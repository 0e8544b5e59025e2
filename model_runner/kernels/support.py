"""Whether the CPU engine can run a model, told from its configuration alone: the supervisor asks before torch is loaded."""

from typing import Any

from model_runner.kernels.library import missing_for_build

DENSE_ARCHITECTURES = frozenset(
    {
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "SmolLM3ForCausalLM",
        "SeedOssForCausalLM",
        "GraniteForCausalLM",
        "Phi3ForCausalLM",
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
    }
)
"""Declarations that `model_runner.kernels.build` can turn into a program."""


def kernels_refusal(architecture: str, config: dict[str, Any], processor_flags: frozenset[str]) -> str | None:
    """Why the CPU kernels can't serve this model on this host, or None if they can."""
    if architecture not in DENSE_ARCHITECTURES:
        return f"the CPU kernels don't know {architecture}"
    heads = int(config.get("num_attention_heads") or 0)
    hidden, intermediate = int(config.get("hidden_size") or 0), int(config.get("intermediate_size") or 0)
    if not heads or not hidden or not intermediate:
        return "the configuration does not say how large its layers are"
    head_dim = int(config.get("head_dim") or hidden // heads)
    if head_dim % 16 or head_dim > 256:
        return f"the CPU kernels don't do heads of {head_dim}"
    if any(width % 32 for width in (hidden, intermediate, heads * head_dim)):
        return "the CPU kernels want widths in multiples of 32"
    return missing_for_build(processor_flags)
