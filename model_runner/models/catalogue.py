"""Every architecture with a native declaration, as plain data: importing this file loads nothing else."""

from dataclasses import dataclass

from runtime.start_error import StartError

TESTED_TRANSFORMERS = "5.24.0"
"""The version whose logits the tests compare with."""


class UnsupportedArchitectureError(StartError, ValueError):
    """Nothing here can run the checkpoint's architecture; the message names it and what may help."""


WEIGHT_FORMATS = (
    "safetensors",
    "GGUF",
    "GPTQ",
    "AWQ",
    "compressed-tensors (int8, fp8, packed int4)",
    "fp8 with scales",
    "MXFP4",
    "random (--load-format dummy)",
)


@dataclass(frozen=True)
class Architecture:
    """`name` is the class named in config.json; `declare` the function in `model_runner.models.MODULE`."""

    name: str
    family: str
    module: str
    declare: str
    features: str
    gguf: str | None = None
    """The architecture name of GGUF files that load as this one."""


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        "LlamaForCausalLM", "Llama 2/3, SmolLM2", "llama", "declare_llama", "every rope scaling, biases", "llama"
    ),
    Architecture("MistralForCausalLM", "Mistral", "mistral", "declare_mistral", "sliding window"),
    Architecture("MixtralForCausalLM", "Mixtral", "mistral", "declare_mixtral", "mixture of experts"),
    Architecture("Qwen2ForCausalLM", "Qwen2, Qwen2.5", "qwen", "declare_qwen2", "sliding window", "qwen2"),
    Architecture("Qwen3ForCausalLM", "Qwen3", "qwen", "declare_qwen3", "query and key norms", "qwen3"),
    Architecture("Qwen3MoeForCausalLM", "Qwen3 MoE", "qwen", "declare_qwen3_moe", "mixture of experts", "qwen3moe"),
    Architecture("SmolLM3ForCausalLM", "SmolLM3", "smollm3", "declare_smollm3", "layers without rotation", "smollm3"),
    Architecture("SeedOssForCausalLM", "Seed-OSS", "seed_oss", "declare_seed_oss", "biases"),
    Architecture("GraniteForCausalLM", "Granite 3", "granite", "declare_granite", "multipliers", "granite"),
    Architecture(
        "Phi3ForCausalLM", "Phi-3, Phi-3.5, Phi-4", "phi", "declare_phi3", "LongRoPE, partial rotation", "phi3"
    ),
    Architecture("Olmo2ForCausalLM", "OLMo 2", "olmo", "declare_olmo2", "norms after each half", "olmo2"),
    Architecture("Olmo3ForCausalLM", "OLMo 3", "olmo", "declare_olmo3", "sliding and full layers"),
    Architecture("Gemma2ForCausalLM", "Gemma 2", "gemma", "declare_gemma2", "soft caps, sliding layers", "gemma2"),
    Architecture("Gemma3ForCausalLM", "Gemma 3 (text)", "gemma", "declare_gemma3", "two rotations", "gemma3"),
    Architecture(
        "Gemma3ForConditionalGeneration",
        "Gemma 3 (text of the models that read images)",
        "gemma",
        "declare_gemma3",
        "two rotations",
    ),
    Architecture(
        "GptOssForCausalLM", "GPT-OSS", "gpt_oss", "declare_gpt_oss", "attention sinks, mixture of experts, MXFP4"
    ),
    Architecture(
        "DeepseekV2ForCausalLM", "DeepSeek-V2", "deepseek", "declare_deepseek_v2", "latent attention, expert groups"
    ),
    Architecture(
        "DeepseekV3ForCausalLM",
        "DeepSeek-V3, R1",
        "deepseek",
        "declare_deepseek_v3",
        "latent attention, expert groups, FP8 blocks",
    ),
)


def list_models() -> str:
    """What `--list-models` prints."""
    width = max(len(entry.name) for entry in ARCHITECTURES)
    lines = ["Architectures with a native declaration (the class named in config.json):", ""]
    lines += [f"  {entry.name:<{width}}  {entry.family}: {entry.features}" for entry in ARCHITECTURES]
    formats = ", ".join(sorted(entry.gguf for entry in ARCHITECTURES if entry.gguf))
    lines += [
        "",
        f"GGUF architectures: {formats}",
        f"Weights: {', '.join(WEIGHT_FORMATS)}",
        "",
        "Others run on transformers' own code over paged attention (--model-impl transformers, chosen by itself where",
        "transformers' class for them takes a foreign attention function); start-up says so, or why it can't.",
    ]
    return "\n".join(lines)


def find_architecture(name: str) -> Architecture | None:
    """The entry of an architecture, or None if it has no native declaration."""
    return next((entry for entry in ARCHITECTURES if entry.name == name), None)
