"""GGUF metadata in the words of transformers' config.json and tokenizer_config.json.

An architecture that is not listed is an error that names it: guessing would answer wrongly. Keys that a checkpoint does
not state get the value that llama.cpp assumes for that architecture.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from runtime.gguf_header import GgufHeader

GGML_TYPE_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 30: "BF16",
}  # fmt: skip


def config_from_gguf(header: GgufHeader) -> dict[str, Any]:
    """The same keys as config.json, for the architectures of `_FAMILIES`; ValueError for others or missing keys."""
    name = header.metadata.get("general.architecture")
    if name not in _FAMILIES:
        known = ", ".join(sorted(_FAMILIES))
        raise ValueError(f"GGUF architecture {name!r} is not supported (these are: {known})")
    model_type, architecture, extend = _FAMILIES[name]
    config = _common(_Keys(header, name)) | {"model_type": model_type, "architectures": [architecture]}
    extend(_Keys(header, name), config)
    return config


def stored_as_from_gguf(header: GgufHeader) -> str:
    """The ggml type that most of the file's weights have; "another type" for one without a name here."""
    values: Counter[str] = Counter()
    for tensor in header.tensors:
        if len(tensor.shape) > 1:
            values[GGML_TYPE_NAMES.get(tensor.ggml_type, "another type")] += math.prod(tensor.shape)
    return values.most_common(1)[0][0] if values else ""


def tokenizer_config_from_gguf(header: GgufHeader) -> dict[str, Any]:
    """Special tokens, `add_bos_token`, `add_eos_token` and the chat template(s)."""
    metadata = header.metadata
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    result: dict[str, Any] = {}
    for key, name in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")):
        id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(id, int) and 0 <= id < len(tokens):
            result[name] = tokens[id]
    for key in ("add_bos_token", "add_eos_token"):
        if f"tokenizer.ggml.{key}" in metadata:
            result[key] = bool(metadata[f"tokenizer.ggml.{key}"])
    templates = {"default": metadata["tokenizer.chat_template"]} if "tokenizer.chat_template" in metadata else {}
    for name in metadata.get("tokenizer.chat_templates", ()):
        if isinstance(template := metadata.get(f"tokenizer.chat_template.{name}"), str):
            templates[name] = template
    if templates:
        result["chat_template"] = templates["default"] if list(templates) == ["default"] else templates
    return result


def end_tokens_from_gguf(header: GgufHeader) -> list[int]:
    """End of sequence, end of turn, end of message: each ends an answer."""
    names = ("eos", "eot", "eom")
    ids = (header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names)
    return list(dict.fromkeys(id for id in ids if isinstance(id, int)))


class _Keys:
    """`<architecture>.<key>` of the metadata."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self.header = header
        self._architecture = architecture

    def get(self, key: str, default: Any = None) -> Any:
        return self.header.metadata.get(f"{self._architecture}.{key}", default)

    def number(self, key: str) -> Any:
        value = self.get(key)
        if isinstance(value, list) and value and all(entry == value[0] for entry in value):
            value = value[0]  # some converters write one entry per layer
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"GGUF key {self._architecture}.{key} is missing or no number")
        return value

    def has_tensor(self, name: str) -> bool:
        return any(tensor.name == name for tensor in self.header.tensors)


def _common(keys: _Keys) -> dict[str, Any]:
    metadata = keys.header.metadata
    heads = keys.number("attention.head_count")
    hidden = keys.number("embedding_length")
    if heads < 1 or hidden < 1:
        raise ValueError(f"GGUF claims {heads} attention heads and {hidden} hidden values")
    config: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": keys.number("feed_forward_length"),
        "num_hidden_layers": keys.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.number("attention.head_count_kv") if keys.get("attention.head_count_kv") else heads,
        "head_dim": keys.get("attention.key_length") or hidden // heads,
        "rms_norm_eps": _rounded(keys.number("attention.layer_norm_rms_epsilon")),
        "rope_theta": _rounded(keys.get("rope.freq_base", 10000.0)),
        "max_position_embeddings": keys.number("context_length"),
        "vocab_size": keys.get("vocab_size") or len(metadata.get("tokenizer.ggml.tokens", ())),
        "tie_word_embeddings": not keys.has_tensor("output.weight"),
        "hidden_act": "silu",
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
    }
    if (scaling := _rope_scaling(keys)) is not None:
        config["rope_scaling"] = scaling
    return config


def _rope_scaling(keys: _Keys) -> dict[str, Any] | None:
    kind = keys.get("rope.scaling.type", "none")
    if kind in ("linear", "yarn"):
        scaling = {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
        if (original := keys.get("rope.scaling.original_context_length")) is not None:
            scaling["original_max_position_embeddings"] = original
        return scaling
    if kind not in ("none", "longrope"):
        raise ValueError(f"GGUF rope.scaling.type {kind!r} is not supported")
    if keys.has_tensor("rope_freqs.weight"):
        # Llama 3's scaling, already worked out by the converter: one divisor per frequency.
        return {"rope_type": "gguf_factors", "tensor": "rope_freqs.weight"}
    return None


def _rounded(value: float) -> float:
    """A float32 of the file as the decimal it was written from: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")


def _llama(keys: _Keys, config: dict[str, Any]) -> None:
    if keys.get("expert_count"):
        raise ValueError("GGUF mixture-of-experts models of architecture 'llama' (Mixtral) are not supported")
    rotary = keys.get("rope.dimension_count") or config["head_dim"]
    if rotary != config["head_dim"]:
        config["partial_rotary_factor"] = rotary / config["head_dim"]
    config["attention_bias"] = keys.has_tensor("blk.0.attn_q.bias")
    config["mlp_bias"] = keys.has_tensor("blk.0.ffn_gate.bias")


def _granite(keys: _Keys, config: dict[str, Any]) -> None:
    _llama(keys, config)
    if keys.get("rope.scaling.finetuned") is False:
        raise ValueError("GGUF granite models without rotation (rope.scaling.finetuned is false) are not supported")
    scale = keys.get("attention.scale")
    config["attention_multiplier"] = _rounded(scale) if scale else config["head_dim"] ** -0.5
    config["embedding_multiplier"] = _rounded(keys.get("embedding_scale") or 1.0)
    config["residual_multiplier"] = _rounded(keys.get("residual_scale") or 1.0)
    config["logits_scaling"] = _rounded(keys.number("logit_scale"))


def _smollm3(keys: _Keys, config: dict[str, Any]) -> None:
    """No key says which layers don't rotate: it is every fourth."""
    _llama(keys, config)
    config["no_rope_layer_interval"] = 4
    config["use_sliding_window"] = False


def _olmo2(keys: _Keys, config: dict[str, Any]) -> None:
    if keys.get("attention.sliding_window"):
        raise ValueError("GGUF files of OLMo 3 (architecture 'olmo2' with a sliding window) are not supported")
    config["attention_bias"] = keys.has_tensor("blk.0.attn_q.bias")


def _qwen2(keys: _Keys, config: dict[str, Any]) -> None:
    config["use_sliding_window"] = False


def _qwen3(keys: _Keys, config: dict[str, Any]) -> None:
    config["use_sliding_window"] = False
    config["attention_bias"] = keys.has_tensor("blk.0.attn_q.bias")


def _qwen3moe(keys: _Keys, config: dict[str, Any]) -> None:
    """Each layer has experts, and the weights of the chosen ones add up to 1."""
    _qwen3(keys, config)
    if keys.get("expert_weights_norm") is False or (keys.get("expert_weights_scale") or 1.0) != 1.0:
        raise ValueError("GGUF qwen3moe models with expert weights that are scaled or not normalised are not supported")
    config["num_experts"] = keys.number("expert_count")
    config["num_experts_per_tok"] = keys.number("expert_used_count")
    config["moe_intermediate_size"] = keys.number("expert_feed_forward_length")
    config["norm_topk_prob"] = True
    config["decoder_sparse_step"] = 1
    config["mlp_only_layers"] = []


def _gemma2(keys: _Keys, config: dict[str, Any]) -> None:
    layers = config["num_hidden_layers"]
    config["hidden_activation"] = config["hidden_act"] = "gelu_pytorch_tanh"
    config["sliding_window"] = keys.get("attention.sliding_window", 4096)
    config["attn_logit_softcapping"] = keys.get("attn_logit_softcapping", 50.0)
    config["final_logit_softcapping"] = keys.get("final_logit_softcapping", 30.0)
    # The 27B model alone (46 layers) scales queries by its width per head, and GGUF has no key for it.
    wide = layers == 46
    config["query_pre_attn_scalar"] = (
        config["hidden_size"] // config["num_attention_heads"] if wide else config["head_dim"]
    )
    config["layer_types"] = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]


def _gemma3(keys: _Keys, config: dict[str, Any]) -> None:
    layers = config["num_hidden_layers"]
    config["hidden_activation"] = config["hidden_act"] = "gelu_pytorch_tanh"
    config["sliding_window"] = keys.get("attention.sliding_window", 1024)
    config["rope_theta"] = _rounded(keys.get("rope.freq_base", 1_000_000.0))
    config["rope_local_base_freq"] = 10000.0
    config["attn_logit_softcapping"] = config["final_logit_softcapping"] = None
    wide = layers == 62  # 27B, as above
    config["query_pre_attn_scalar"] = (
        config["hidden_size"] // config["num_attention_heads"] if wide else config["head_dim"]
    )
    config["layer_types"] = ["sliding_attention" if (layer + 1) % 6 else "full_attention" for layer in range(layers)]


def _phi3(keys: _Keys, config: dict[str, Any]) -> None:
    if keys.has_tensor("rope_factors_long.weight"):
        config["rope_scaling"] = {
            "rope_type": "gguf_longrope",
            "tensors": ["rope_factors_long.weight", "rope_factors_short.weight"],
            "attention_factor": keys.get("rope.scaling.attn_factor"),
        }
        original = keys.get("rope.scaling.original_context_length")
        config["original_max_position_embeddings"] = original or config["max_position_embeddings"]
    config["sliding_window"] = keys.get("attention.sliding_window")
    config["partial_rotary_factor"] = (keys.get("rope.dimension_count") or config["head_dim"]) / config["head_dim"]


_FAMILIES: dict[str, tuple[str, str, Callable[[_Keys, dict[str, Any]], None]]] = {
    "llama": ("llama", "LlamaForCausalLM", _llama),
    "granite": ("granite", "GraniteForCausalLM", _granite),
    "smollm3": ("smollm3", "SmolLM3ForCausalLM", _smollm3),
    "olmo2": ("olmo2", "Olmo2ForCausalLM", _olmo2),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", _qwen2),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", _qwen3),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM", _qwen3moe),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", _gemma2),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM", _gemma3),
    "phi3": ("phi3", "Phi3ForCausalLM", _phi3),
}
