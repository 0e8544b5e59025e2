"""Where the GPU's tests run: on CUDA with the real libraries, and on CPU over stand-ins, which shows that the tests do.

`pytest tests/gpu` on a host without a GPU runs the second half only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model_runner.attention.flashinfer_backend import FlashInferAttention
from model_runner.attention.interface import AttentionBackend
from model_runner.attention.torch_backend import TorchAttention
from model_runner.quantization.fp8 import import_fp8_kernels
from model_runner.runner import ModelRunner
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.server_args import ServerArgs
from tests.model_runner.attention import flashinfer_standin
from tests.model_runner.conftest import make_config
from tests.model_runner.quantization.test_fp8 import SglKernel

LLAMA: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "vocab_size": 512,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {"num_local_experts": 8, "num_experts_per_tok": 2}
"""What makes a Mixtral of it."""


@dataclass(frozen=True)
class Place:
    """A device and the libraries on it."""

    device: torch.device
    flashinfer: Any
    sgl_kernel: Any

    @property
    def real(self) -> bool:
        return self.device.type == "cuda"

    def attention(self, backend: str) -> AttentionBackend:
        if backend == "torch":
            return TorchAttention(self.device, torch.bfloat16)
        return FlashInferAttention(self.device, torch.bfloat16, library=self.flashinfer)


@pytest.fixture(params=["cuda", "stand-in"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "stand-in":
        return Place(torch.device("cpu"), flashinfer_standin, SglKernel)
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    return Place(torch.device("cuda", 0), None, import_fp8_kernels())


def llama_config(place: Place, experts: bool = False, **changes: Any) -> EngineConfig:
    """A small Llama (or Mixtral) with random weights, bfloat16."""
    description = ModelDescription(
        name="llama",
        path="",
        format="dummy",
        served_names=("llama",),
        architecture="MixtralForCausalLM" if experts else "LlamaForCausalLM",
        config=LLAMA | EXPERTS if experts else LLAMA,
        context_length=2048,
        vocab_size=512,
        eos_token_ids=(),
        bos_token_id=None,
        tokenizer_file="",
    )
    settings: dict[str, Any] = {"model": description, "dtype": "bfloat16", "page_size": 16, "kv_tokens": 8192}
    settings["device"] = "cuda" if place.real else "cpu"
    return make_config(**(settings | changes))


@pytest.fixture
def make_runner(place: Place) -> Callable[..., ModelRunner]:
    """A runner of the small Llama: by backend, with graphs or without."""

    def make(backend: str, graphs: bool = True, **changes: Any) -> ModelRunner:
        args = ServerArgs(disable_cuda_graph=not graphs)
        config = llama_config(place, attention_backend=backend, args=args, **changes)
        return ModelRunner(config, attention=place.attention(backend))

    return make


@pytest.fixture
def sync_errors(place: Place) -> Any:
    """A context in which waiting for the GPU is an error."""

    class Strict:
        def __enter__(self) -> None:
            if place.real:
                torch.cuda.set_sync_debug_mode("error")

        def __exit__(self, *reason: Any) -> None:
            if place.real:
                torch.cuda.set_sync_debug_mode("default")

    return SimpleNamespace(strict=Strict)
