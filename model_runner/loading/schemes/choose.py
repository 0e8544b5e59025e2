"""Which scheme a checkpoint's `quantization_config` means; anything not read here is an error that names it."""

from collections.abc import Mapping
from typing import Any

from model_runner.loading.errors import LoadError
from model_runner.loading.quantized_source import Scheme
from model_runner.loading.schemes.awq import AwqScheme
from model_runner.loading.schemes.gptq import GptqScheme
from model_runner.loading.schemes.mxfp4 import Mxfp4Scheme
from model_runner.loading.schemes.packed import PackedScheme
from model_runner.loading.schemes.scaled import ScaledScheme

METHODS = ("gptq", "awq", "compressed-tensors", "fp8", "mxfp4")
SCALED_FORMATS = ("int-quantized", "float-quantized", "naive-quantized")


def choose_scheme(settings: Mapping[str, Any]) -> Scheme | None:
    """The scheme of a checkpoint, None if its configuration says that nothing is compressed."""
    method = settings.get("quant_method")
    if method == "gptq":
        bits = _one_of(settings, "bits", (2, 4, 8))
        version = _one_of(settings, "checkpoint_format", ("gptq", "gptq_v2"), "gptq")
        return GptqScheme(bits, 1 if version == "gptq" else 0)
    if method == "awq":
        _one_of(settings, "bits", (4,), settings.get("w_bit", 4))
        _one_of(settings, "version", ("gemm", "GEMM"), "gemm")
        return AwqScheme()
    if method == "compressed-tensors":
        return _compressed_tensors(settings)
    if method == "fp8":
        return ScaledScheme(_block(settings.get("weight_block_size")))
    if method == "mxfp4":
        return Mxfp4Scheme()
    raise LoadError(f"quantization_config: quant_method is {method!r}; supported: {', '.join(METHODS)}")


def _compressed_tensors(settings: Mapping[str, Any]) -> Scheme | None:
    if settings.get("quantization_status") not in (None, "compressed", "frozen"):
        raise LoadError(
            f"quantization_config: quantization_status is {settings['quantization_status']!r}; supported: compressed"
        )
    if settings.get("sparsity_config") not in (None, {}) and settings["sparsity_config"].get("format") != "dense":
        raise LoadError(f"quantization_config: sparsity_config is {settings['sparsity_config']!r}; supported: dense")
    if settings.get("transform_config") not in (None, {}):
        raise LoadError("quantization_config: transform_config (rotated weights) is not supported")
    kind = settings.get("format")
    if kind == "dense":
        return None
    groups = list(settings.get("config_groups", {}).values())
    if kind in SCALED_FORMATS:
        blocks = {_block(_weights_of(group).get("block_structure")) for group in groups} or {None}
        if len(blocks) > 1:
            raise LoadError("quantization_config: groups with different block_structure are not supported")
        return ScaledScheme(blocks.pop())
    if kind == "pack-quantized":
        found = {_weights_of(group).get("num_bits") for group in groups}
        for bits in (4, 8):
            if found == {bits}:
                return PackedScheme(bits)
        raise LoadError(
            f"quantization_config: pack-quantized weights of {sorted(map(str, found))} bits; supported: 4, 8"
        )
    supported = ", ".join((*SCALED_FORMATS, "pack-quantized"))
    raise LoadError(f"quantization_config: format is {kind!r}; supported: {supported}")


def _weights_of(group: Any) -> dict[str, Any]:
    weights = group.get("weights") if isinstance(group, dict) else None
    return weights if isinstance(weights, dict) else {}


def _block(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(isinstance(n, int) and n > 0 for n in value):
        raise LoadError(f"quantization_config: a block of {value!r}; supported: two positive integers")
    return int(value[0]), int(value[1])


def _one_of(settings: Mapping[str, Any], key: str, allowed: tuple[Any, ...], default: Any = None) -> Any:
    value = settings.get(key, default)
    if value not in allowed:
        raise LoadError(f"quantization_config: {key} is {value!r}; supported: {', '.join(map(str, allowed))}")
    return value
