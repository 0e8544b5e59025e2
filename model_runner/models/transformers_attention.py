"""Candor's paged attention as one of transformers' attention functions, and the probe that finds out what it must keep."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AttentionInterface

from model_runner.attention.interface import AttentionBackend, AttentionSpec, LayerKV
from model_runner.step import StepInputs

IMPLEMENTATION = "candor_paged"

INERT_ARGUMENTS = frozenset(
    [
        "position_ids",
        "position_embeddings",
        "cache",
        "cache_position",
        "past_key_values",
        "use_cache",
        "output_attentions",
        "dropout",
        "output_hidden_states",
        "return_dict",
        "output_router_logits",
        "is_causal",
        "training",
    ]
)
"""What models pass to attention functions and paged attention has no use for."""


class PagedCall:
    """Travels as a keyword argument from the model's forward to every attention layer. `numbers` counts attention layers
    in the order of their first call, since models number their layers with gaps."""

    def __init__(self, attention: AttentionBackend, numbers: dict[int, int]) -> None:
        self.attention = attention
        self.numbers = numbers


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, tokens, key_dim]
    key: torch.Tensor,  # [1, kv_heads, tokens, key_dim]
    value: torch.Tensor,  # [1, kv_heads, tokens, value_dim]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    candor: PagedCall | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attends over the pool of `candor`; output [1, tokens, heads, value_dim]."""
    if candor is None:
        raise TypeError(f"{type(module).__name__} does not hand keyword arguments on to its attention function")
    strange = [name for name, given in others.items() if given is not None and name not in INERT_ARGUMENTS]
    if strange or attention_mask is not None:
        raise TypeError(f"{type(module).__name__} attends with {', '.join(strange) or 'a mask of its own'}")
    if not getattr(module, "is_causal", True):
        raise TypeError(f"{type(module).__name__} does not attend causally")
    number = candor.numbers.setdefault(int(module.layer_idx), len(candor.numbers))  # type: ignore[arg-type]
    spec = AttentionSpec(
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        v_head_dim=value.shape[-1],
        sliding_window=sliding_window,
        logit_soft_cap=softcap,
        sinks=None if s_aux is None else s_aux.float(),
    )
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return candor.attention.attend(number, queries, keys, values, spec)[None], None


def register() -> None:
    """Makes `attn_implementation=IMPLEMENTATION` known to transformers."""
    AttentionInterface.register(IMPLEMENTATION, paged_attention)


class ProbeAttention:
    """An attention backend that keeps nothing and notes what each layer would have it keep."""

    def __init__(self) -> None:
        self.found: dict[int, LayerKV] = {}

    def bytes_per_page(self, layers: Sequence[LayerKV], page_size: int) -> int:
        return 0

    def make_pool(self, layers: Sequence[LayerKV], pages: int, page_size: int) -> None: ...

    def prepare(self, inputs: StepInputs) -> None: ...

    def attend(
        self,
        layer_index: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        spec: AttentionSpec,
    ) -> torch.Tensor:
        if layer_index in self.found:
            raise TypeError(f"layer {layer_index} attends twice in one step")
        assert key is not None and value is not None
        self.found[layer_index] = LayerKV(key.shape[1], key.shape[2], value.shape[2], spec.sliding_window)
        return query.new_zeros(query.shape[0], query.shape[1], spec.v_head_dim)
