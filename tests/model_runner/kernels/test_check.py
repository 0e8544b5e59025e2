"""What was compiled is tried before it is kept: compilers that make a sound library, one that crashes, one that errs."""

import ctypes
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import launch
from model_runner.kernels import check
from model_runner.kernels.library import (
    REQUIRED_CPU_FLAGS,
    STRUCTS,
    KernelsUnavailable,
    build_library,
    build_refusal,
    cpu_flags,
    open_library,
)
from runtime.environment import Environment
from runtime.hardware import Hardware
from runtime.server_args import ServerArgs
from tests.samples import make_model

SOURCE = """
extern "C" {
void* candor_create(int) { CREATE; return nullptr; }
void candor_destroy(void*) {}
void candor_forward(void*, const void*, const void*, float*) {}
void candor_linear(void*, const void*, const float*, int, float*) {}
void candor_contenders(void*, const void*) {}
int candor_sizes(int which) { const int sizes[] = {SIZES}; return sizes[which]; }
}
"""


def use_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path, command: str) -> Path:
    """Makes it what the kernels are compiled with, the output's name added to it; returns an empty cache. It knows all
    flags but `-funknown`."""
    compiler = folder / "compiler"
    find_output = 'while [ "$1" ] && [ "$1" != -o ]; do shift; done\n[ "$1" ] || exit 0'
    refuse = 'case "$*" in *-funknown*) exit 1;; esac'
    compiler.write_text(f'#!/bin/sh\n{refuse}\n{find_output}\n{command} "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    return folder / "cache"


def compile_instead(create: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    sizes = ", ".join(str(ctypes.sizeof(struct)) for struct in STRUCTS)
    (folder / "instead.cpp").write_text(SOURCE.replace("CREATE", create).replace("SIZES", sizes))
    return use_compiler(monkeypatch, folder, f"{compiler} -shared -fPIC {folder}/instead.cpp -o")


def test_a_library_that_crashes_is_refused_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = compile_instead("__builtin_trap()", monkeypatch, tmp_path)
    with pytest.raises(KernelsUnavailable, match="don't work on this processor: SIGILL"):
        build_library(cache)
    assert list(cache.iterdir()) == []


def test_a_library_that_errs_is_refused_with_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = compile_instead("", monkeypatch, tmp_path)
    with caplog.at_level(logging.WARNING):
        refusal = build_refusal(cache)
    assert refusal is not None
    for part in ("int4 products", "int8 products", "bfloat16", "float32", "forward pass", "contenders"):
        assert part in refusal
    assert refusal in caplog.text


def test_a_compiler_that_fails_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = build_refusal(use_compiler(monkeypatch, tmp_path, "echo no such standard >&2; exit 1 #"))
    assert refusal == "the CPU kernels did not compile: no such standard"


@pytest.mark.parametrize("code", ["avx2_library", "avx512_library"])
def test_sound_libraries_pass(code: str, request: pytest.FixtureRequest) -> None:
    assert check.main(request.getfixturevalue(code)._name) == 0


def test_another_processor_or_c_library_has_a_build_of_its_own(
    library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = use_compiler(monkeypatch, tmp_path, f"cp {library._name}")
    here = build_library(cache)
    assert build_library(cache) == here
    module = "model_runner.kernels.library"
    with monkeypatch.context() as elsewhere:
        flags = cpu_flags()
        elsewhere.setattr(f"{module}.cpu_flags", lambda: flags | {"avx512f"})
        assert build_library(cache) != here
    monkeypatch.setattr(f"{module}.platform.libc_ver", lambda: ("glibc", "2.17"))
    assert build_library(cache) != here
    assert len(list(cache.iterdir())) == 3


def test_a_compiler_is_spared_the_flags_that_it_does_not_know(
    library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = use_compiler(monkeypatch, tmp_path, f"cp {library._name}")
    monkeypatch.setattr("model_runner.kernels.library.GCC_FLAGS", ("-funknown",))
    assert build_library(cache).exists()


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "library.so").write_text("nothing")
    with pytest.raises(KernelsUnavailable, match="can't be loaded"):
        open_library(tmp_path / "library.so")


@pytest.mark.parametrize(
    ("flags", "gpus", "refused"),
    [
        ({}, 0, True),
        ({"attention_backend": "cpu", "device": "cpu"}, 2, True),
        ({"attention_backend": "torch"}, 0, False),
        ({}, 2, False),
    ],
)
def test_a_start_tries_the_kernels_that_it_will_use(
    flags: dict[str, Any], gpus: int, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(monkeypatch, tmp_path, "exit 1 #")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    hardware = Hardware(2, 1 << 30, 1 << 30, REQUIRED_CPU_FLAGS, gpus)
    refusal = launch._kernels_refusal(
        ServerArgs(**flags),
        make_model(architecture="LlamaForCausalLM", config=sizes),
        hardware,
        Environment(cache_folder=tmp_path),
    )
    assert (refusal is not None and "did not compile" in refusal) == refused
