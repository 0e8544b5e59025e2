"""A small Llama as a quantised checkpoint of random integers, and the same weights dequantised."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from model_runner.loading.safetensors_source import SafetensorsSource
from model_runner.loading.schemes.choose import choose_scheme

HIDDEN, INNER, GROUP = 64, 96, 32
LLAMA: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LINEARS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "int8": {"quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed"},
    "fp8-blocks": {"quant_method": "fp8", "weight_block_size": [32, 32]},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP},
    "gptq-reordered": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True},
}


@dataclass(frozen=True)
class Checkpoints:
    """Two folders, and the configuration of the first; the second has none of quantisation."""

    small: Path
    dense: Path
    settings: dict[str, Any]


def draw(*shape: int) -> torch.Tensor:
    scale: float = shape[-1] ** -0.5
    return torch.randn(shape) * scale


def plain_tensors() -> dict[str, torch.Tensor]:
    layer = "model.layers.0"
    gains = ("model.norm", f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
    made = {f"{name}.weight": 1 + draw(HIDDEN) for name in gains}
    return made | {"model.embed_tokens.weight": draw(99, HIDDEN), "lm_head.weight": draw(99, HIDDEN)}


def words(*shape: int) -> torch.Tensor:
    """Eight random values of four bits each."""
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).to(torch.int32)


def quantised(kind: str, name: str, rows: int, columns: int) -> dict[str, torch.Tensor]:
    if kind == "int8":
        values = torch.randint(-127, 128, (rows, columns), dtype=torch.int8)
        return {f"{name}.weight": values, f"{name}.weight_scale": torch.rand(rows, 1) / 600}
    if kind == "fp8-blocks":
        blocks = (-(-rows // 32), -(-columns // 32))
        values = draw(rows, columns).mul(400).to(torch.float8_e4m3fn)
        return {f"{name}.weight": values, f"{name}.weight_scale_inv": torch.rand(blocks) / 200}
    groups = columns // GROUP
    parts = {"qzeros": words(groups, rows // 8), "scales": (torch.rand(groups, rows) / 40).half()}
    if kind == "awq":
        parts["qweight"] = words(columns, rows // 8)
    else:
        parts["qweight"] = words(columns // 8, rows)
        places = torch.randperm(columns) if kind == "gptq-reordered" else torch.arange(columns)
        parts["g_idx"] = (places // GROUP).to(torch.int32)
    return {f"{name}.{part}": tensor for part, tensor in parts.items()}


def save_checkpoints(folder: Path, kind: str) -> Checkpoints:
    torch.manual_seed(0)
    plain, settings = plain_tensors(), SETTINGS[kind]
    stored: dict[str, torch.Tensor] = {}
    for name, (rows, columns) in LINEARS.items():
        stored |= quantised(kind, f"model.layers.0.{name}", rows, columns)
    made = Checkpoints(folder / "small", folder / "dense", settings)
    for path in (made.small, made.dense):
        path.mkdir()
    save_file(plain | stored, made.small / "model.safetensors")
    scheme = choose_scheme(settings)
    assert scheme is not None
    source = SafetensorsSource(made.small)
    for name, shape in LINEARS.items():
        full = f"model.layers.0.{name}.weight"
        plain[full] = scheme.read(full, shape, (slice(None), slice(None)), source).contiguous()
    save_file(plain, made.dense / "model.safetensors")
    return made
