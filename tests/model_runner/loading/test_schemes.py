"""Quantised checkpoints: each scheme against weights packed here, one value at a time, by its published layout."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file

from model_runner.loading.errors import LoadError
from model_runner.loading.quantized_source import QuantizedSource
from model_runner.loading.safetensors_source import SafetensorsSource
from model_runner.loading.schemes.choose import choose_scheme

OUTPUTS, INPUTS, GROUPS = 16, 64, 4
NAME = "model.layers.0.mlp.up_proj"
Settings = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def integers(low: int, high: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def scales_of(*shape: int) -> torch.Tensor:
    return (integers(1, 64, *shape, seed=9) / 64).half()


def pack(values: list[int], bits: int) -> int:
    """Values into one int32 word, the first in the lowest bits."""
    word = sum(value << (bits * place) for place, value in enumerate(values))
    return word - (1 << 32) if word >= 1 << 31 else word


def gptq(bits: int, version: str, reordered: bool) -> tuple[Settings, Tensors, torch.Tensor]:
    per_word = 32 // bits
    quants = integers(0, 1 << bits, INPUTS, OUTPUTS).tolist()
    zeros = integers(0, 1 << bits, GROUPS, OUTPUTS, seed=1).tolist()
    scales = scales_of(GROUPS, OUTPUTS)
    group_of = [place * GROUPS // INPUTS for place in range(INPUTS)]
    if reordered:
        group_of = group_of[::-1]
    offset = 1 if version == "gptq" else 0
    mask = (1 << bits) - 1
    qweight = [
        [pack([quants[row * per_word + place][column] for place in range(per_word)], bits) for column in range(OUTPUTS)]
        for row in range(INPUTS // per_word)
    ]
    qzeros = [
        [
            pack([(zeros[group][word * per_word + place] - offset) & mask for place in range(per_word)], bits)
            for word in range(OUTPUTS // per_word)
        ]
        for group in range(GROUPS)
    ]
    weight = torch.empty(OUTPUTS, INPUTS)
    for output, place in itertools.product(range(OUTPUTS), range(INPUTS)):
        group = group_of[place]
        weight[output, place] = scales[group, output].float() * (quants[place][output] - zeros[group][output])
    tensors = {
        "qweight": torch.tensor(qweight, dtype=torch.int32),
        "qzeros": torch.tensor(qzeros, dtype=torch.int32),
        "scales": scales,
        "g_idx": torch.tensor(group_of, dtype=torch.int32),
    }
    return {"quant_method": "gptq", "bits": bits, "checkpoint_format": version}, tensors, weight


def awq() -> tuple[Settings, Tensors, torch.Tensor]:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    quants = integers(0, 16, INPUTS, OUTPUTS).tolist()
    zeros = integers(0, 16, GROUPS, OUTPUTS, seed=1).tolist()
    scales = scales_of(GROUPS, OUTPUTS)

    def packed(rows: list[list[int]]) -> torch.Tensor:
        words = [
            [pack([row[word * 8 + order[nibble]] for nibble in range(8)], 4) for word in range(OUTPUTS // 8)]
            for row in rows
        ]
        return torch.tensor(words, dtype=torch.int32)

    weight = torch.empty(OUTPUTS, INPUTS)
    for output, place in itertools.product(range(OUTPUTS), range(INPUTS)):
        group = place * GROUPS // INPUTS
        weight[output, place] = scales[group, output].float() * (quants[place][output] - zeros[group][output])
    tensors = {"qweight": packed(quants), "qzeros": packed(zeros), "scales": scales}
    return {"quant_method": "awq", "bits": 4, "version": "gemm", "group_size": 16}, tensors, weight


def compressed(format: str, granularity: str) -> tuple[Settings, Tensors, torch.Tensor]:
    shape = {"tensor": (1,), "channel": (OUTPUTS, 1), "group": (OUTPUTS, GROUPS)}[granularity]
    scales = scales_of(*shape).float()
    values: torch.Tensor
    if format == "float-quantized":
        values = (integers(-400, 400, OUTPUTS, INPUTS).float()).to(torch.float8_e4m3fn)
    else:
        values = integers(-127, 128, OUTPUTS, INPUTS).to(torch.int8)
    columns = scales if granularity != "group" else scales.repeat_interleave(INPUTS // GROUPS, dim=1)
    tensors = {"weight": values, "weight_scale": scales, "input_scale": torch.ones(1)}
    return {"quant_method": "compressed-tensors", "format": format}, tensors, values.float() * columns


def packed_tensors(bits: int, symmetric: bool) -> tuple[Settings, Tensors, torch.Tensor]:
    per_word = 32 // bits
    quants = integers(0, 1 << bits, OUTPUTS, INPUTS).tolist()
    zeros = integers(0, 1 << bits, OUTPUTS, GROUPS, seed=1).tolist()
    scales = scales_of(OUTPUTS, GROUPS)
    words = [
        [pack(quants[row][word * per_word : (word + 1) * per_word], bits) for word in range(INPUTS // per_word)]
        for row in range(OUTPUTS)
    ]
    weight = torch.empty(OUTPUTS, INPUTS)
    for output, place in itertools.product(range(OUTPUTS), range(INPUTS)):
        group = place * GROUPS // INPUTS
        zero = (1 << (bits - 1)) if symmetric else zeros[output][group]
        weight[output, place] = scales[output, group].float() * (quants[output][place] - zero)
    tensors = {
        "weight_packed": torch.tensor(words, dtype=torch.int32),
        "weight_scale": scales,
        "weight_shape": torch.tensor([OUTPUTS, INPUTS]),
    }
    if not symmetric:
        zero_words = [
            [
                pack([zeros[word * per_word + place][group] for place in range(per_word)], bits)
                for group in range(GROUPS)
            ]
            for word in range(OUTPUTS // per_word)
        ]
        tensors["weight_zero_point"] = torch.tensor(zero_words, dtype=torch.int32)
    groups = {"group_0": {"weights": {"num_bits": bits}}}
    return (
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups},
        tensors,
        weight,
    )


def fp8_blocks() -> tuple[Settings, Tensors, torch.Tensor]:
    """Blocks of 12 by 48, the last ones cut off."""
    values = integers(-400, 400, OUTPUTS, INPUTS).float().to(torch.float8_e4m3fn)
    scales = scales_of(2, 2).float()
    spread = scales.repeat_interleave(12, dim=0)[:OUTPUTS].repeat_interleave(48, dim=1)[:, :INPUTS]
    settings = {"quant_method": "fp8", "weight_block_size": [12, 48]}
    return settings, {"weight": values, "weight_scale_inv": scales}, values.float() * spread


MADE: dict[str, Callable[[], tuple[Settings, Tensors, torch.Tensor]]] = {
    "gptq-4": lambda: gptq(4, "gptq", reordered=False),
    "gptq-8-reordered": lambda: gptq(8, "gptq", reordered=True),
    "gptq-v2": lambda: gptq(4, "gptq_v2", reordered=False),
    "awq": awq,
    "int8-channel": lambda: compressed("int-quantized", "channel"),
    "int8-group": lambda: compressed("int-quantized", "group"),
    "fp8-tensor": lambda: compressed("float-quantized", "tensor"),
    "fp8-channel": lambda: compressed("float-quantized", "channel"),
    "packed-4": lambda: packed_tensors(4, symmetric=True),
    "packed-4-zeros": lambda: packed_tensors(4, symmetric=False),
    "packed-8": lambda: packed_tensors(8, symmetric=True),
    "fp8-blocks": fp8_blocks,
}


def saved_source(folder: Path, settings: Settings, tensors: Tensors) -> QuantizedSource:
    extra = {"model.norm.weight": torch.ones(INPUTS)}
    save_file(
        {f"{NAME}.{part}": data.contiguous() for part, data in tensors.items()} | extra, folder / "model.safetensors"
    )
    scheme = choose_scheme(settings)
    assert scheme is not None
    return QuantizedSource(SafetensorsSource(folder), scheme)


@pytest.mark.parametrize("case", MADE)
def test_reads_what_was_packed(case: str, tmp_path: Path) -> None:
    settings, tensors, weight = MADE[case]()
    source = saved_source(tmp_path, settings, tensors)
    name = f"{NAME}.weight"
    assert set(source.names()) == {name, "model.norm.weight"}
    assert source.has(name) and source.has("model.norm.weight") and not source.has("model.embed_tokens.weight")
    shape = source.shape(name, (OUTPUTS, INPUTS))
    assert shape == (OUTPUTS, INPUTS)
    for rows, columns in ((slice(None), slice(None)), (slice(3, 11), slice(None)), (slice(8, 16), slice(16, 48))):
        torch.testing.assert_close(source.read(name, shape, (rows, columns)).float(), weight[rows, columns])
    torch.testing.assert_close(source.read("model.norm.weight", (INPUTS,), (slice(None),)), torch.ones(INPUTS))
    assert source.stored_bytes(name) > 0
    source.close()


def test_mxfp4_experts(tmp_path: Path) -> None:
    """Against the table of 4-bit floats, one value at a time."""
    experts, outputs, inputs = 2, 4, 64
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    codes = integers(0, 16, experts, outputs, inputs)
    scales = integers(120, 134, experts, outputs, inputs // 32, seed=3)
    weight = numpy.zeros((experts, inputs, outputs), dtype=numpy.float32)
    blocks = numpy.zeros((experts, outputs, inputs // 2), dtype=numpy.uint8)
    for expert, output, place in itertools.product(range(experts), range(outputs), range(inputs)):
        code = int(codes[expert, output, place])
        sign = -1.0 if code & 8 else 1.0
        weight[expert, place, output] = sign * table[code & 7] * 2.0 ** (int(scales[expert, output, place // 32]) - 127)
        blocks[expert, output, place // 2] |= code << (4 * (place % 2))
    name = "model.layers.0.mlp.experts.down_proj"
    stored = torch.from_numpy(blocks).view(experts, outputs, inputs // 32, 16)
    save_file({f"{name}_blocks": stored, f"{name}_scales": scales.to(torch.uint8)}, tmp_path / "model.safetensors")
    scheme = choose_scheme({"quant_method": "mxfp4"})
    assert scheme is not None
    source = QuantizedSource(SafetensorsSource(tmp_path), scheme)
    assert set(source.names()) == {name}
    shape = source.shape(name, ())
    assert shape == (experts, inputs, outputs)
    whole = source.read(name, shape, (slice(None), slice(None), slice(None)))
    torch.testing.assert_close(whole, torch.from_numpy(weight))
    part = source.read(name, shape, (slice(1, 2), slice(10, 50), slice(1, 3)))
    torch.testing.assert_close(part, torch.from_numpy(weight[1:2, 10:50, 1:3]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'"),
        ({"quant_method": "gptq", "bits": 3}, "bits is 3"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version is 'gemv'"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "format is 'marlin-24'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"a block of \[128\]"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}, "pack-quantized"),
    ],
)
def test_unknown_settings_are_named(settings: Settings, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        choose_scheme(settings)


def test_parts_that_do_not_fit_are_named(tmp_path: Path) -> None:
    settings, tensors, _ = gptq(4, "gptq", reordered=False)
    tensors["scales"] = tensors["scales"][:, :8]
    source = saved_source(tmp_path, settings, tensors)
    with pytest.raises(LoadError, match=r"up_proj\.(qzeros|scales) has shape"):
        source.read(f"{NAME}.weight", (OUTPUTS, INPUTS), (slice(None), slice(None)))


def test_group_numbers_are_checked(tmp_path: Path) -> None:
    settings, tensors, _ = gptq(4, "gptq", reordered=False)
    tensors["g_idx"][5] = GROUPS
    source = saved_source(tmp_path, settings, tensors)
    with pytest.raises(LoadError, match="g_idx names groups outside"):
        source.read(f"{NAME}.weight", (OUTPUTS, INPUTS), (slice(None), slice(None)))


def test_scales_that_do_not_fit_are_named(tmp_path: Path) -> None:
    settings, tensors, _ = compressed("int-quantized", "channel")
    tensors["weight_scale"] = torch.ones(OUTPUTS - 1, 1)
    source = saved_source(tmp_path, settings, tensors)
    with pytest.raises(LoadError, match=r"weight_scale has shape \[15, 1\], which does not scale \[16, 64\]"):
        source.read(f"{NAME}.weight", (OUTPUTS, INPUTS), (slice(None), slice(None)))
