"""What the supervisor is told about the CPU kernels, and that building agrees with it."""

from pathlib import Path
from typing import Any

import pytest

from model_runner.kernels import library
from model_runner.kernels.library import KernelsUnavailable, build_library, cpu_flags
from model_runner.kernels.support import kernels_refusal

FLAGS = frozenset({"avx2", "fma", "f16c"})
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("architecture", "changes", "flags", "reason"),
    [
        ("MixtralForCausalLM", {}, FLAGS, "don't know Mixtral"),
        ("LlamaForCausalLM", {"head_dim": 24}, FLAGS, "heads of 24"),
        ("LlamaForCausalLM", {"intermediate_size": 100}, FLAGS, "multiples of 32"),
        ("LlamaForCausalLM", {"hidden_size": None}, FLAGS, "how large"),
        ("LlamaForCausalLM", {}, FLAGS - {"f16c"}, "f16c"),
    ],
)
def test_refusals_say_why(architecture: str, changes: dict[str, Any], flags: frozenset[str], reason: str) -> None:
    refusal = kernels_refusal(architecture, SIZES | changes, flags)
    assert refusal is not None
    assert reason in refusal


def test_no_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert "C++ compiler" in str(kernels_refusal("LlamaForCausalLM", SIZES, FLAGS | cpu_flags()))


def test_building_without_a_compiler_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(library, "cpu_flags", lambda: FLAGS)
    with pytest.raises(KernelsUnavailable, match=r"C\+\+ compiler"):
        build_library(tmp_path)


def test_a_compiler_that_is_named_and_not_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    assert "C++ compiler" in str(kernels_refusal("LlamaForCausalLM", SIZES, FLAGS | cpu_flags()))
    monkeypatch.setattr(library, "cpu_flags", lambda: FLAGS)
    with pytest.raises(KernelsUnavailable, match="CXX"):
        build_library(tmp_path)
