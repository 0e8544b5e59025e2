"""Names: what a GGUF file calls the tensors that safetensors checkpoints call otherwise."""

import re

LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")

OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
INSIDE = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
AROUND = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
"""Families with norms after each half use `post_attention_layernorm` for another place than Llama does."""
OUTPUT_ONLY = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}

FAMILY_NAMES: dict[str, dict[str, str]] = {
    "gemma2": INSIDE | AROUND,
    "gemma3": INSIDE | AROUND,
    "olmo2": INSIDE | OUTPUT_ONLY,
}
ROTATED_PAIRS = frozenset({"llama", "granite", "smollm3"})
"""GGUF architectures whose converter reorders query and key rows from halves to neighbouring pairs."""
SHIFTED_GAINS = frozenset({"gemma", "gemma2", "gemma3"})
"""GGUF architectures whose converter adds one to norm gains that the checkpoint stores around zero."""
SUPPORTED = frozenset(
    {"llama", "granite", "smollm3", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "olmo2", "qwen3moe"}
)


def gguf_name(name: str, gguf_architecture: str) -> str | None:
    """The file's name of a checkpoint tensor, or None if it has none."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    match = LAYER.fullmatch(name)
    if match is None:
        return None
    layer, part, kind = match.groups()
    inside = FAMILY_NAMES.get(gguf_architecture, INSIDE).get(part)
    return None if inside is None else f"blk.{layer}.{inside}.{kind}"


EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")


def expert_tensor(name: str) -> tuple[str, int] | None:
    """(the file's stacked tensor, the expert's place in it) of one expert's weight."""
    match = EXPERT.fullmatch(name)
    if match is None:
        return None
    layer, expert, part = match.groups()
    return f"blk.{layer}.ffn_{part}_exps.weight", int(expert)


def is_rotated(name: str, gguf_architecture: str) -> bool:
    """True for query and key projections whose rows the file keeps in another order."""
    return gguf_architecture in ROTATED_PAIRS and bool(re.search(r"self_attn\.[qk]_proj\.(weight|bias)$", name))


def is_shifted_gain(name: str, gguf_architecture: str) -> bool:
    return gguf_architecture in SHIFTED_GAINS and name.endswith("norm.weight")
