"""The table of fused operations, and the layers that use it, over stand-ins bound to the real libraries' signatures."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from model_runner.layers.activations import ACTIVATIONS, gate_of, gated
from model_runner.layers.norms import FusedRMSNorm, RMSNorm
from model_runner.layers.ops import NATIVE, OPERATIONS, TORCH_OPS, choose_ops, table_of
from model_runner.layers.rotary import Rotary, rotate
from tests.model_runner.attention import flashinfer_standin
from tests.model_runner.signatures.binding import bind, read_signatures

BF16 = torch.bfloat16


def library(name: str) -> SimpleNamespace:
    """A stand-in for one library: its calls are bound to its signatures and computed by torch."""
    signatures = read_signatures(name)

    def rmsnorm(*arguments: Any, **keywords: Any) -> torch.Tensor:
        call = bind(signatures, "rmsnorm", *arguments, **keywords)
        assert call["input"].dtype == call["weight"].dtype and call["input"].is_contiguous()
        return RMSNorm(call["weight"].float(), call["eps"])(call["input"])

    def fused_add_rmsnorm(*arguments: Any, **keywords: Any) -> None:
        call = bind(signatures, "fused_add_rmsnorm", *arguments, **keywords)
        call["residual"].add_(call["input"])
        call["input"].copy_(RMSNorm(call["weight"].float(), call["eps"])(call["residual"]))

    def gate(operation: str, activation: Any) -> Any:
        return lambda *arguments: gated(activation, bind(signatures, operation, *arguments)["input"])

    def rotary_embedding(*arguments: Any, **keywords: Any) -> None:
        call = bind(signatures, "rotary_embedding", *arguments, **keywords)
        assert call["key"] is None
        query, positions, cache = call["query"], call["positions"], call["cos_sin_cache"]
        flashinfer_standin.turn_in_place(query, positions, call["head_size"], cache, call["is_neox"])

    rotations: dict[str, Any] = {
        "sgl_kernel": {"rotary_embedding": rotary_embedding},
        "flashinfer": {
            "apply_rope_with_cos_sin_cache_inplace": flashinfer_standin.apply_rope_with_cos_sin_cache_inplace
        },
    }
    return SimpleNamespace(
        **rotations[name],
        rmsnorm=rmsnorm,
        fused_add_rmsnorm=fused_add_rmsnorm,
        silu_and_mul=gate("silu_and_mul", functional.silu),
        gelu_and_mul=gate("gelu_and_mul", functional.gelu),
        gelu_tanh_and_mul=gate("gelu_tanh_and_mul", lambda x: functional.gelu(x, approximate="tanh")),
    )


def test_on_cpu_torch_computes_everything() -> None:
    ops = choose_ops(torch.device("cpu"), BF16)
    assert set(ops.sources.values()) == {NATIVE} and ops.rms_norm is None and not ops.gates


def test_the_first_library_that_has_an_operation_computes_it() -> None:
    first, second = library("sgl_kernel"), library("flashinfer")
    del first.rmsnorm
    table = table_of({"sgl_kernel": first, "flashinfer": second})
    assert table.sources == {"rmsnorm": "flashinfer"} | dict.fromkeys(OPERATIONS[1:], "sgl_kernel")
    assert table.rms_norm is second.rmsnorm and table.add_rms_norm is first.fused_add_rmsnorm
    none = table_of({"sgl_kernel": None, "flashinfer": None})
    assert set(none.sources.values()) == {NATIVE} and none.add_rms_norm is None


def test_libraries_that_are_not_there_leave_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sgl_kernel", None)
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    assert set(choose_ops(torch.device("cuda"), BF16).sources.values()) == {NATIVE}


@pytest.mark.parametrize("name", ["sgl_kernel", "flashinfer"])
def test_fused_norms_are_the_plain_ones(name: str) -> None:
    random = torch.Generator().manual_seed(1)
    plain = RMSNorm(torch.randn(32, generator=random).to(BF16).float(), 1e-5)
    fused = FusedRMSNorm.of(plain, table_of({name: library(name)}), BF16)
    assert isinstance(fused, FusedRMSNorm)
    inputs, residual = (torch.randn(5, 32, generator=random).to(BF16) for _ in range(2))
    torch.testing.assert_close(fused(inputs), plain(inputs))
    wanted = plain.add(inputs, residual)
    torch.testing.assert_close(fused.add(inputs.clone(), residual.clone()), wanted)


def test_a_gain_that_would_lose_digits_stays_with_torch() -> None:
    plain = RMSNorm(torch.tensor([1.001, 1.0]), 1e-5)
    assert FusedRMSNorm.of(plain, table_of({"sgl_kernel": library("sgl_kernel")}), BF16) is plain


@pytest.mark.parametrize("name", ["sgl_kernel", "flashinfer"])
@pytest.mark.parametrize("activation", sorted(set(ACTIVATIONS) - {"relu"}))
def test_fused_gates_are_the_plain_ones(name: str, activation: str) -> None:
    gate_up = torch.randn(3, 16, generator=torch.Generator().manual_seed(2)).to(BF16)
    table = table_of({name: library(name)})
    assert activation in table.gates
    torch.testing.assert_close(gate_of(activation, table)(gate_up), gate_of(activation, TORCH_OPS)(gate_up))


def test_an_activation_without_a_kernel_is_torchs() -> None:
    table = table_of({"sgl_kernel": library("sgl_kernel")})
    torch.testing.assert_close(
        gate_of("relu", table)(torch.tensor([[-1.0, 2.0, 3.0, 4.0]])), torch.tensor([[0.0, 8.0]])
    )


@pytest.mark.parametrize("name", ["sgl_kernel", "flashinfer"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotated_dim"), [(64, 64), (64, 32), (96, 96)])
def test_kernels_rotate_as_torch_does(name: str, interleaved: bool, head_dim: int, rotated_dim: int) -> None:
    """Heads are a part of a wider projection, as a layer has them. flashinfer has no kernel for heads of 96."""
    random = torch.Generator().manual_seed(3)
    table = Rotary(torch.rand(rotated_dim // 2, generator=random), scale=1.2).table(torch.tensor([0, 7, 7, 300, 2]))
    projected = torch.randn(5, 4 * head_dim, generator=random)
    heads = torch.unflatten(projected[:, : 3 * head_dim], -1, (3, head_dim))
    wanted = rotate(heads, table, interleaved)
    found = table_of({name: library(name)}).rotate(heads, table, interleaved)
    if interleaved and (name, head_dim) != ("flashinfer", 96):  # torch leaves pairs apart, kernels where they were
        pairs = torch.unflatten(wanted[..., :rotated_dim], -1, (2, -1)).transpose(-1, -2).flatten(-2)
        wanted = torch.cat((pairs, wanted[..., rotated_dim:]), dim=-1)
    torch.testing.assert_close(found, wanted)
    if (name, head_dim) != ("flashinfer", 96):
        assert found.data_ptr() == projected.data_ptr()
