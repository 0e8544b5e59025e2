"""Decisions: tables of (wishes, machine) and what comes of them, with no machine at hand."""

from pathlib import Path
from typing import Any

import pytest

from runtime.hardware import Hardware, read_hardware
from runtime.resolve import Given, kv_bytes_per_token, resolve
from runtime.server_args import ServerArgs
from runtime.start_error import StartError
from tests.samples import make_model

GIBIBYTE = 1 << 30
LLAMA = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "torch_dtype": "bfloat16",
}
CPU = Hardware(cores=8, memory_bytes=16 * GIBIBYTE, available_bytes=8 * GIBIBYTE, processor_flags=frozenset(), gpus=0)
BF16_CPU = Hardware(8, 16 * GIBIBYTE, 8 * GIBIBYTE, frozenset({"avx512_bf16"}), 0)
GPUS = Hardware(8, 16 * GIBIBYTE, 8 * GIBIBYTE, frozenset(), 2)


KERNELS: dict[str, Any] = {"kernels_refusal": None}


def decide(
    hardware: Hardware = CPU,
    weight_bytes: int = 0,
    omp_threads: int | None = None,
    kernels_refusal: str | None = "no compiler",
    stored_as: str = "",
    native: bool = True,
    flashinfer_refusal: str | None = None,
    **flags: Any,
) -> Any:
    model = make_model(config=LLAMA, context_length=8192, stored_as=stored_as)
    given = Given(
        ServerArgs(**flags), model, hardware, weight_bytes, omp_threads, kernels_refusal, native, flashinfer_refusal
    )
    return resolve(given, run_dir="/r", version="0")


@pytest.mark.parametrize(
    ("hardware", "flags", "expected"),
    [
        (CPU, {}, {"device": "cpu", "dtype": "float32", "attention_backend": "torch", "lookahead": 0, "threads": 8}),
        (BF16_CPU, {}, {"dtype": "bfloat16"}),
        (BF16_CPU, {"dtype": "float32"}, {"dtype": "float32"}),
        (GPUS, {}, {"device": "cuda", "dtype": "bfloat16", "attention_backend": "flashinfer", "lookahead": 1}),
        (GPUS, {}, {"kv_tokens": None}),
        (GPUS, {"device": "cpu"}, {"device": "cpu", "attention_backend": "torch"}),
        (GPUS, {"attention_backend": "torch"}, {"attention_backend": "torch"}),
        (CPU, {"max_total_tokens": 100}, {"kv_tokens": 96}),
        (CPU, {"threads": 3}, {"threads": 3}),
        (CPU, {"dp_size": 2}, {"threads": 4}),
        (CPU, {"context_length": 100}, {}),
        (CPU, {}, {"max_running_requests": 64, "max_batch_tokens": 2048, "chunked_prefill_size": 1024}),
        (CPU, {"max_batch_tokens": 128}, {"chunked_prefill_size": 128}),
        (CPU, {"stored_as": "Q4_1"}, {"quantization": "none"}),
        (CPU, KERNELS, {"attention_backend": "cpu", "dtype": "bfloat16", "quantization": "none"}),
        (CPU, KERNELS | {"stored_as": "Q4_1"}, {"attention_backend": "cpu", "quantization": "w8a8"}),
        (CPU, KERNELS | {"stored_as": "BF16"}, {"quantization": "none"}),
        (CPU, KERNELS | {"stored_as": "Q4_1", "quantization": "none"}, {"quantization": "none"}),
        (CPU, KERNELS | {"quantization": "int4"}, {"quantization": "int4"}),
        (CPU, KERNELS | {"dtype": "float32"}, {"attention_backend": "torch", "dtype": "float32"}),
        (CPU, KERNELS | {"dtype": "float32", "attention_backend": "cpu"}, {"attention_backend": "cpu"}),
        (CPU, KERNELS | {"page_size": 32}, {"attention_backend": "torch"}),
        (CPU, KERNELS | {"tp_size": 2}, {"attention_backend": "torch"}),
        (GPUS, KERNELS, {"attention_backend": "flashinfer"}),
        (GPUS, {"flashinfer_refusal": "odd heads"}, {"attention_backend": "torch"}),
        (GPUS, {"dtype": "float32"}, {"attention_backend": "torch", "dtype": "float32"}),
        (CPU, KERNELS | {"deterministic": True}, {"attention_backend": "cpu"}),
        (CPU, KERNELS | {"native": False}, {"model_impl": "transformers", "attention_backend": "torch"}),
        (CPU, {"native": False, "model_impl": "native"}, {"model_impl": "native"}),
        (CPU, KERNELS, {"draft_tokens": 8, "lookahead": 0}),
        (CPU, KERNELS | {"lookahead": 1}, {"draft_tokens": 0, "lookahead": 1}),
        (CPU, KERNELS | {"speculative_algorithm": "none"}, {"draft_tokens": 0}),
        (CPU, KERNELS | {"speculative_num_draft_tokens": 3}, {"draft_tokens": 3}),
        (CPU, {}, {"draft_tokens": 0}),
        (GPUS, {}, {"draft_tokens": 0}),
        (GPUS, {"speculative_algorithm": "ngram"}, {"draft_tokens": 8, "lookahead": 0}),
    ],
)
def test_decisions(hardware: Hardware, flags: dict[str, Any], expected: dict[str, Any]) -> None:
    config = decide(hardware, **flags)
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"device": "cuda"}, "no NVIDIA GPU"),
        ({"attention_backend": "cpu"}, "can't be had: no compiler"),
        ({"deterministic": True}, "--deterministic needs the compiled CPU kernels: no compiler"),
        (KERNELS | {"deterministic": True, "attention_backend": "torch"}, "another backend"),
        ({"quantization": "w8a8"}, "needs the compiled CPU kernels"),
        ({"quantization": "q2"}, "--quantization q2 is not known"),
        ({"attention_backend": "flashinfer"}, "does not run on cpu"),
        ({"context_length": 10_000}, "more than the 8192 positions"),
        ({"max_batch_tokens": 8}, "can't hold one token of each"),
    ],
)
def test_wishes_that_can_t_be_met(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StartError, match=sentence):
        decide(**flags)


def test_a_model_that_flashinfer_cannot_attend_for_says_so_at_start() -> None:
    assert ("attention_backend = torch", "no latent attention") in decide(
        GPUS, flashinfer_refusal="no latent attention"
    ).decisions
    asked = decide(GPUS, flashinfer_refusal="odd heads", attention_backend="flashinfer")
    assert asked.attention_backend == "flashinfer"


def test_more_ranks_than_gpus() -> None:
    with pytest.raises(StartError, match="needs 4 GPUs, 2 are here"):
        decide(GPUS, tp_size=2, dp_size=2)


def test_too_little_memory_is_said_before_anything_is_loaded() -> None:
    with pytest.raises(StartError, match="too little memory: 8192 MiB are free"):
        decide(weight_bytes=5 * GIBIBYTE)


def test_the_pool_fits_into_memory_and_is_shared_by_replicas() -> None:
    model = make_model(config=LLAMA)
    alone, shared = decide(max_running_requests=64), decide(dp_size=2, max_running_requests=64)
    assert alone.kv_tokens * kv_bytes_per_token(model, "float32") < CPU.available_bytes / 2
    assert alone.kv_tokens % alone.page_size == 0
    assert shared.kv_tokens * 2 <= alone.kv_tokens + 2 * alone.page_size


def test_the_pool_is_no_larger_than_all_rows_at_their_longest() -> None:
    assert decide(max_running_requests=1, max_batch_tokens=64).kv_tokens == 8192


def test_every_choice_has_a_reason_and_the_context_reaches_the_model() -> None:
    config = decide(context_length=100, omp_threads=2)
    assert config.model.context_length == 100
    assert config.threads == 2
    names = {what.partition(" = ")[0] for what, _ in config.decisions}
    assert {"model", "device", "dtype", "attention_backend", "context_length", "kv_tokens", "threads"} <= names
    assert all(reason for _, reason in config.decisions)


def test_hardware_is_read_from_the_kernel_s_files(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 900 kB\n",
        "proc/cpuinfo": "processor : 0\nflags : fpu avx2 avx512_bf16\n",
        "sys/fs/cgroup/memory.max": "512000\n",
        "sys/fs/cgroup/memory.current": "400000\n",
        "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 100000\nactive_file 200000\n",
        "sys/fs/cgroup/cpu.max": "100000 100000\n",
        "dev/nvidia0": "",
        "dev/nvidia1": "",
        "dev/nvidiactl": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    hardware = read_hardware(tmp_path)
    assert (hardware.cores, hardware.gpus) == (1, 2)
    assert (hardware.memory_bytes, hardware.available_bytes) == (512000, 412000)
    assert "avx512_bf16" in hardware.processor_flags
    assert read_hardware(tmp_path, cuda_visible_devices="").gpus == 0
    assert read_hardware(tmp_path / "empty").cores >= 1
