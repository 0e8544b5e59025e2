"""Every architecture with a native declaration, as plain data: importing this file loads nothing else."""

from dataclasses import dataclass

TESTED_TRANSFORMERS = "5.24.0"
"""The version whose logits the tests compare with."""


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
    Architecture("LlamaForCausalLM", "Llama 2/3, SmolLM2", "llama", "declare_llama", "all rope scalings", "llama"),
    Architecture("MistralForCausalLM", "Mistral", "llama", "declare_mistral", "sliding window"),
    Architecture("SmolLM3ForCausalLM", "SmolLM3", "llama", "declare_smollm3", "layers without rotation", "smollm3"),
    Architecture("GraniteForCausalLM", "Granite 3", "llama", "declare_granite", "multipliers", "granite"),
)


def find_architecture(name: str) -> Architecture | None:
    """The entry of an architecture, or None if it has no native declaration."""
    return next((entry for entry in ARCHITECTURES if entry.name == name), None)
