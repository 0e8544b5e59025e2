"""Whole forward passes on the kernels against the torch path, on tiny random models of each supported shape."""

import ctypes
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import torch

from model_runner.attention.registry import build_attention
from model_runner.inputs import InputBuilder, PlanRows
from model_runner.kernels import build
from model_runner.kernels.build import UnsupportedByKernelsError
from model_runner.kernels.library import build_library
from model_runner.kernels.support import DENSE_ARCHITECTURES
from model_runner.models.registry import build_model
from model_runner.step import CausalModel, StepInputs
from protocol.ids import pack_ids
from protocol.plan import BatchPlan, PageDelta
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.server_args import ServerArgs

PAGES, PAGE = 96, 16
SIZES = {
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 24}
FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"tie_word_embeddings": False},
    "Qwen2ForCausalLM": {"tie_word_embeddings": True},
    "Qwen3ForCausalLM": {"head_dim": 32},
    "Olmo2ForCausalLM": {"tie_word_embeddings": False},
    "GraniteForCausalLM": {
        "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 4.0
    },
    "Gemma2ForCausalLM": GEMMA | {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0},
    "MistralForCausalLM": {"sliding_window": 20},
    "SeedOssForCausalLM": {"head_dim": 32, "attention_out_bias": True, "mlp_bias": True},
    "SmolLM3ForCausalLM": {"num_hidden_layers": 4},
    "Phi3ForCausalLM": {"original_max_position_embeddings": 2048, "tie_word_embeddings": False},
    "Olmo3ForCausalLM": {"num_hidden_layers": 4, "sliding_window": 24, "tie_word_embeddings": False},
    "Gemma3ForCausalLM": GEMMA | {"num_hidden_layers": 2, "sliding_window_pattern": 2},
}  # fmt: skip


def config_of(architecture: str, quantization: str, backend: str, dtype: str = "float32") -> EngineConfig:
    model = ModelDescription(
        name="tiny", path="", format="dummy", served_names=("tiny",), architecture=architecture,
        config=SIZES | FAMILIES[architecture], context_length=2048, vocab_size=200, eos_token_ids=(2,),
        bos_token_id=1, tokenizer_file="",
    )  # fmt: skip
    return msgspec.convert(
        {
            "args": ServerArgs(), "model": model, "run_dir": "", "device": "cpu", "dtype": dtype,
            "quantization": quantization, "attention_backend": backend, "model_impl": "native", "page_size": PAGE,
            "kv_tokens": PAGES * PAGE, "max_running_requests": 8, "max_batch_tokens": 2048, "chunked_prefill_size": 512,
            "lookahead": 0, "threads": 2, "tool_call_parser": None, "reasoning_parser": None, "version": "0",
        },
        EngineConfig,
    )  # fmt: skip


class Harness:
    """One model with its pool; rows are (ids, context, first page) and own the pages from there on."""

    def __init__(self, config: EngineConfig) -> None:
        self.model: CausalModel = build_model(config)
        self.attention = build_attention(config.attention_backend, torch.device("cpu"), self.model.dtype)
        self.attention.make_pool(self.model.layer_specs, PAGES, PAGE)
        self.builder = InputBuilder(8, PAGE, torch.device("cpu"))

    def logits(self, *rows: tuple[list[int], int, int]) -> torch.Tensor:
        """Of every fed token, rows one after another."""
        inputs = self._inputs(rows)
        with torch.inference_mode():
            self.attention.prepare(inputs)
            return self.model.logits(self.model.forward(inputs, self.attention)).clone()

    def _inputs(self, rows: tuple[tuple[list[int], int, int], ...]) -> StepInputs:
        deltas = []
        for slot, (ids, context, first) in enumerate(rows):
            count = -(-(context + len(ids)) // PAGE)
            deltas.append(PageDelta(slot, 0, pack_ids(range(first, first + count))))
        plan = BatchPlan(
            step=0,
            slots=pack_ids(range(len(rows))),
            new_tokens=pack_ids(len(ids) for ids, _, _ in rows),
            context=pack_ids(context for _, context, _ in rows),
            draws=pack_ids(1 for _ in rows),
            ids=pack_ids(i for ids, _, _ in rows for i in ids),
            page_deltas=deltas,
        )
        self.builder.apply(plan.page_deltas)
        return self.builder.build(PlanRows.parse(plan), torch.zeros(8, dtype=torch.int64))


def test_every_listed_architecture_is_tried() -> None:
    assert set(FAMILIES) == DENSE_ARCHITECTURES


def ids_of(count: int, seed: int = 0) -> list[int]:
    return [int(value) for value in numpy.random.default_rng(seed).integers(3, 200, count)]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_float32_weights_give_the_torch_path_s_logits(library: ctypes.CDLL, architecture: str) -> None:
    prompt = ids_of(45)
    expected = Harness(config_of(architecture, "none", "torch")).logits((prompt, 0, 1))
    found = Harness(config_of(architecture, "none", "cpu")).logits((prompt, 0, 1))
    # Keys and values are kept in bfloat16 here.
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))


@pytest.mark.parametrize("quantization", ["none", "w8a8", "int4"])
def test_logits_do_not_depend_on_chunks_cache_or_company(library: ctypes.CDLL, quantization: str) -> None:
    harness = Harness(config_of("Qwen3ForCausalLM", quantization, "cpu", "bfloat16"))
    prompt = ids_of(70)
    whole = harness.logits((prompt, 0, 1))
    for chunk in (1, 7, 32):
        parts = [harness.logits((prompt[at : at + chunk], at, 10)) for at in range(0, len(prompt), chunk)]
        assert torch.equal(torch.cat(parts), whole)
    # The last tokens again behind what is cached, one row of several.
    others = [(ids_of(9, seed=1), 0, 30), (ids_of(1, seed=2), 0, 40)]
    mixed = harness.logits(others[0], (prompt[64:], 64, 1), others[1])
    assert torch.equal(mixed[9:15], whole[64:])
    decoding = harness.logits((prompt[69:], 69, 1), (ids_of(1, seed=2), 0, 40), (ids_of(1, seed=3), 0, 41))
    assert torch.equal(decoding[:1], whole[69:])


@pytest.mark.parametrize("window", [None, 600])
def test_long_contexts_split_and_merge_alike(library: ctypes.CDLL, window: int | None) -> None:
    family = "MistralForCausalLM"
    config = config_of(family, "none", "cpu", "bfloat16")
    settings = SIZES | FAMILIES[family] | {"sliding_window": window}
    config = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, config=settings))
    harness = Harness(config)
    prompt = ids_of(1300)
    whole = harness.logits((prompt, 0, 1))
    # One row over three splits: split up among threads; many rows: each whole. Both as when it was read in one go.
    assert torch.equal(harness.logits((prompt[1299:], 1299, 1)), whole[1299:])
    crowd = [(prompt[1299:], 1299, 1)] * 7
    assert torch.equal(harness.logits(*crowd)[3:4], whole[1299:])


def test_tiles_pass_over_splits_that_lie_before_some_of_their_windows(
    avx512_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the tiles of AVX-512 and one query head per KV head, a tile's windows begin up to 36 tokens apart."""
    monkeypatch.setattr(build, "load_library", lambda cache_dir: avx512_library)
    config = config_of("MistralForCausalLM", "none", "cpu", "bfloat16")
    settings = config.model.config | {"num_key_value_heads": 4, "sliding_window": 600}
    harness = Harness(msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, config=settings)))
    prompt = ids_of(1300)
    whole = harness.logits((prompt, 0, 1))
    for at in (1103, 1140, 1151, 1299):
        assert torch.equal(harness.logits((prompt[at : at + 1], at, 1)), whole[at : at + 1])


@pytest.mark.parametrize("quantization", ["none", "w8a8", "int4"])
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("Gemma2ForCausalLM", {"sliding_window": 550}),
        ("Qwen3ForCausalLM", {"num_attention_heads": 14, "head_dim": 48}),
        ("Olmo2ForCausalLM", {"num_key_value_heads": 1}),
    ],
)
def test_avx512_code_gives_the_same_bits(
    avx2_library: ctypes.CDLL,
    avx512_library: ctypes.CDLL,
    monkeypatch: pytest.MonkeyPatch,
    architecture: str,
    changes: dict[str, Any],
    quantization: str,
) -> None:
    config = config_of(architecture, quantization, "cpu", "bfloat16")
    config = msgspec.structs.replace(
        config, model=msgspec.structs.replace(config.model, config=config.model.config | changes)
    )
    prompt = ids_of(700)
    steps: list[list[tuple[list[int], int, int]]] = [
        [(prompt[:650], 0, 1)],
        [(prompt[650:657], 650, 1), (prompt[:1], 0, 60), (prompt[3:26], 0, 70)],
        [(prompt[657:658], 657, 1)],
    ]
    of_code = []
    for code in (avx2_library, avx512_library):
        monkeypatch.setattr(build, "load_library", lambda cache_dir, code=code: code)
        harness = Harness(config)
        of_code.append(torch.cat([harness.logits(*rows) for rows in steps]))
    assert torch.equal(*of_code)


def test_nan_stays_with_its_row(library: ctypes.CDLL) -> None:
    harness = Harness(config_of("Qwen2ForCausalLM", "none", "cpu"))
    prompt = ids_of(20)
    expected = harness.logits((prompt, 0, 1))
    decoder = harness.model._decoder  # type: ignore[attr-defined]
    of_token_1 = decoder.embedding.data.view(torch.float32).view(-1, decoder.hidden, 16)[0, :, 1]
    sound = of_token_1.clone()
    of_token_1[:] = torch.nan
    assert harness.logits(([1] * 30, 0, 1)).isnan().all()
    # The same pages, of which the second has values of the first row behind those of the new one.
    of_token_1[:] = sound
    assert torch.equal(harness.logits((prompt, 0, 1)), expected)


def test_nan_of_queries_alone_is_not_lost(library: ctypes.CDLL) -> None:
    harness = Harness(config_of("Qwen2ForCausalLM", "none", "cpu"))
    prompt = ids_of(16)
    harness.logits((prompt[:15], 0, 1))
    with torch.inference_mode():
        harness.model._decoder.layers[0].qkv.bias[3] = torch.nan  # type: ignore[attr-defined]
    assert harness.logits((prompt[15:], 15, 1)).isnan().all()  # a whole page, of which no position is masked


def test_a_shape_without_kernels_is_refused_by_name(library: ctypes.CDLL) -> None:
    config = config_of("Qwen3ForCausalLM", "none", "cpu")
    odd = msgspec.structs.replace(config.model, config=config.model.config | {"head_dim": 24})
    with pytest.raises(UnsupportedByKernelsError, match="head dimension of 24"):
        build_model(msgspec.structs.replace(config, model=odd))


def test_library_is_built_once(library: ctypes.CDLL) -> None:
    first = build_library(Path("~/.cache/candor/kernels").expanduser())
    stamp = first.stat().st_mtime_ns
    assert build_library(first.parent) == first
    assert first.stat().st_mtime_ns == stamp
