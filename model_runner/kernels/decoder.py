"""A dense decoder on the CPU engine: packed weights, the program that the kernels run, and its KV pool."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy
import torch

from model_runner.attention.interface import AttentionBackend, AttentionSpec, LayerKV
from model_runner.attention.pages import page_bytes
from model_runner.kernels.library import LayerStruct, LinearStruct, ModelStruct, StepStruct
from model_runner.kernels.packing import Form, PackedWeight
from model_runner.step import StepInputs

PAGE_TOKENS = 16
MAX_HEAD_DIM = 256
_FORMS: dict[Form, int] = {"int4": 0, "int8": 1, "bfloat16": 2, "float32": 3}
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
_HEAD_NORMS = {"none": 0, "per_head": 1, "whole_projection": 2}


@dataclass(frozen=True)
class DenseLayer:
    """One layer's weights; norms are float32, None where the family has none at that place."""

    input_norm: torch.Tensor | None  # [hidden]
    qkv: PackedWeight
    query_norm: torch.Tensor | None  # [head_dim] or [heads * head_dim]
    key_norm: torch.Tensor | None
    rotary: torch.Tensor | None  # [positions, rotary_dim] float32: cosines, then sines
    attention_out: PackedWeight
    post_attention_norm: torch.Tensor | None  # [hidden]
    mlp_norm: torch.Tensor | None  # [hidden]
    gate_up: PackedWeight
    down: PackedWeight
    post_mlp_norm: torch.Tensor | None  # [hidden]
    sliding_window: int | None = None


@dataclass(frozen=True)
class DenseDecoder:
    """What distinguishes one dense family from another, as the kernels take it."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    rotary_dim: int
    activation: Literal["silu", "gelu_tanh"]
    head_norm: Literal["none", "per_head", "whole_projection"]
    epsilon: float
    attention_scale: float
    soft_cap: float | None
    embedding_multiplier: float
    residual_multiplier: float
    embedding: PackedWeight
    head: PackedWeight
    final_norm: torch.Tensor  # [hidden]
    layers: Sequence[DenseLayer]
    vocab_size: int
    logit_multiplier: float = 1.0
    logit_soft_cap: float | None = None

    @property
    def weight_bytes(self) -> int:
        packed = {
            id(w.data): w.weight_bytes
            for layer in self.layers
            for w in (layer.qkv, layer.attention_out, layer.gate_up, layer.down)
        }
        packed |= {id(w.data): w.weight_bytes for w in (self.embedding, self.head)}
        return sum(packed.values())


def linear_struct(weight: PackedWeight) -> LinearStruct:
    """The weight as the kernels see it; the caller keeps the weight alive."""
    bias = None if weight.bias is None else weight.bias.data_ptr()
    return LinearStruct(
        form=_FORMS[weight.form],
        outputs=weight.outputs,
        inputs=weight.inputs,
        gated=int(weight.gated),
        activation_bits=weight.activation_bits,
        data=weight.data.data_ptr(),
        bias=bias,
    )


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _lazy_zeros(shape: tuple[int, ...]) -> torch.Tensor:
    """Zeroed bfloat16 that takes memory only once a page of it is written (torch.zeros would touch all of it now)."""
    return torch.from_numpy(numpy.zeros(shape, dtype=numpy.uint16)).view(torch.bfloat16)


class CpuPages:
    """The KV pool in the kernels' layout, and the AttentionBackend that `CpuDecoder.forward` takes it from."""

    def __init__(self) -> None:
        self.keys = torch.empty(0, dtype=torch.bfloat16)
        self.values = torch.empty(0, dtype=torch.bfloat16)

    def bytes_per_page(self, layers: Sequence[LayerKV], page_size: int) -> int:
        return page_bytes(layers, page_size, torch.bfloat16)

    def make_pool(self, layers: Sequence[LayerKV], pages: int, page_size: int) -> None:
        """Zeroed bfloat16 pages of 16 tokens: [pages, layers, kv_heads, 16 * head_dim], for keys and for values.

        A token is written in all layers at once: so it touches one or two huge pages that nobody has used yet, not one
        per layer, each of which would be zeroed while the step waits."""
        if page_size != PAGE_TOKENS:
            raise ValueError(f"--page-size must be {PAGE_TOKENS} with the cpu attention backend, not {page_size}")
        first = layers[0]
        shape = (pages, len(layers), first.kv_heads, PAGE_TOKENS * first.key_dim)
        self.keys, self.values = _lazy_zeros(shape), _lazy_zeros(shape)

    def prepare(self, inputs: StepInputs) -> None:
        """Nothing is shared between layers here."""

    def attend(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        spec: AttentionSpec,
    ) -> torch.Tensor:
        raise NotImplementedError("the CPU engine attends inside CpuDecoder.forward")


class CpuDecoder:
    """Runs a `DenseDecoder` on the kernels; a CausalModel to the runner. Logits depend on a row's own tokens alone."""

    def __init__(self, decoder: DenseDecoder, library: ctypes.CDLL, threads: int) -> None:
        self._decoder = decoder
        self._library = library
        self._engine = library.candor_create(threads)
        self._layers = (LayerStruct * len(decoder.layers))(*[_layer_struct(layer) for layer in decoder.layers])
        self._model = _model_struct(decoder, self._layers)
        self._head = linear_struct(decoder.head)
        self.vocab_size = decoder.vocab_size
        self.dtype = torch.bfloat16
        self.device = torch.device("cpu")
        self.weight_bytes = decoder.weight_bytes
        self.layer_specs = [
            LayerKV(decoder.kv_heads, decoder.head_dim, decoder.head_dim, layer.sliding_window)
            for layer in decoder.layers
        ]

    @property
    def engine(self) -> tuple[ctypes.CDLL, int]:
        """The library and its engine, for what else runs on its threads; both live as long as the decoder."""
        return self._library, self._engine

    def __del__(self) -> None:
        if getattr(self, "_engine", None) is not None:
            self._library.candor_destroy(self._engine)

    def forward(self, inputs: StepInputs, attention: AttentionBackend) -> torch.Tensor:
        """Hidden states after the final norm, float32 [tokens, hidden]."""
        assert isinstance(attention, CpuPages)
        hidden = torch.empty(inputs.tokens, self._decoder.hidden)
        tables = inputs.page_tables.contiguous()
        step = StepStruct(
            inputs.tokens,
            inputs.rows,
            tables.shape[1],
            inputs.ids.data_ptr(),
            inputs.positions.data_ptr(),
            inputs.slot_mapping.data_ptr(),
            inputs.query_starts.data_ptr(),
            tables.data_ptr(),
            attention.keys.data_ptr(),
            attention.values.data_ptr(),
            attention.keys.stride(0),
        )
        self._library.candor_forward(self._engine, ctypes.byref(self._model), ctypes.byref(step), hidden.data_ptr())
        return hidden

    def logits(self, hidden_rows: torch.Tensor) -> torch.Tensor:
        """float32 [draws, vocab]."""
        rows = hidden_rows.contiguous()
        out = torch.empty(rows.shape[0], self._decoder.head.outputs)
        self._library.candor_linear(
            self._engine, ctypes.byref(self._head), rows.data_ptr(), rows.shape[0], out.data_ptr()
        )
        out = out[:, : self.vocab_size]
        if self._decoder.logit_multiplier != 1.0:
            out = out.mul_(self._decoder.logit_multiplier)
        if self._decoder.logit_soft_cap is not None:
            cap = self._decoder.logit_soft_cap
            out = out.div_(cap).tanh_().mul_(cap)
        return out


def _layer_struct(layer: DenseLayer) -> LayerStruct:
    return LayerStruct(
        _pointer(layer.input_norm),
        linear_struct(layer.qkv),
        _pointer(layer.query_norm),
        _pointer(layer.key_norm),
        _pointer(layer.rotary),
        linear_struct(layer.attention_out),
        _pointer(layer.post_attention_norm),
        _pointer(layer.mlp_norm),
        linear_struct(layer.gate_up),
        linear_struct(layer.down),
        _pointer(layer.post_mlp_norm),
        layer.sliding_window or 0,
    )


def _model_struct(decoder: DenseDecoder, layers: ctypes.Array[LayerStruct]) -> ModelStruct:
    return ModelStruct(
        len(decoder.layers),
        decoder.hidden,
        decoder.heads,
        decoder.kv_heads,
        decoder.head_dim,
        decoder.intermediate,
        decoder.rotary_dim,
        _ACTIVATIONS[decoder.activation],
        _HEAD_NORMS[decoder.head_norm],
        decoder.epsilon,
        decoder.attention_scale,
        decoder.soft_cap or 0.0,
        decoder.embedding_multiplier,
        decoder.residual_multiplier,
        linear_struct(decoder.embedding),
        decoder.final_norm.data_ptr(),
        layers,
    )
