"""flashinfer's wrappers in plain torch: every call is bound to the real signatures, and computed from what it was given.

So it also fails where the real one would: rows that do not add up, page lists too long for a graph's buffers, a plan
for another number of rows than the graph was made for.
"""

import itertools
from typing import Any

import torch

from tests.model_runner.signatures.binding import bind, read_signatures

SIGNATURES = read_signatures("flashinfer")


class Wrapper:
    """What both wrappers do: plan once, run for several layers."""

    real = ""
    planned_as = ""
    """The class whose `plan` this one inherits, where it is not its own."""
    plan_name = "plan"
    query_starts: list[int]

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.made = bind(SIGNATURES, f"{self.real}.__init__", self, *arguments, **keywords)
        assert self.made["kv_layout"] == "NHD"
        self.plans = 0

    def plan(self, *arguments: Any, **keywords: Any) -> None:
        owner = self.planned_as or self.real
        self.given = bind(SIGNATURES, f"{owner}.{self.plan_name}", self, *arguments, **keywords)
        self.plans += 1
        self.take(self.given)

    def take(self, given: dict[str, Any]) -> None:
        raise NotImplementedError

    def rows(self, starts: torch.Tensor, pages: torch.Tensor, last: torch.Tensor, page_size: int) -> None:
        assert starts.device.type == last.device.type == "cpu", "a plan must not wait for the device"
        assert starts.dtype == pages.dtype == last.dtype == torch.int32
        assert int(starts[-1]) == len(pages) and bool(((last >= 1) & (last <= page_size)).all())
        self.pages = [pages[begin:end].long() for begin, end in itertools.pairwise(starts.tolist())]
        self.lengths = ((starts.diff() - 1) * page_size + last).tolist()

    def run(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        call = bind(SIGNATURES, f"{self.real}.run", self, *arguments, **keywords)
        query, (keys, values) = call["q"], call["paged_kv_cache"]
        self.sinks = self.sinks_of(*call.get("args", ()))
        given = self.given
        assert query.shape[1] == given["num_qo_heads"] and keys.shape[2] == given["num_kv_heads"]
        assert query.dtype == keys.dtype == given["q_data_type"] == given["kv_data_type"]
        parts = []
        for row, (pages, length) in enumerate(zip(self.pages, self.lengths, strict=True)):
            begin, end = self.query_starts[row], self.query_starts[row + 1]
            held = [pool[pages].flatten(0, 1)[:length].float() for pool in (keys, values)]
            parts.append(self.attend(query[begin:end].float(), *held))
        attended = torch.cat(parts)
        assert len(attended) == len(query)
        return attended.to(query.dtype)

    def sinks_of(self, *more: Any) -> torch.Tensor | None:
        assert not more
        return None

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        given, count, length = self.given, len(query), len(keys)
        group = given["num_qo_heads"] // given["num_kv_heads"]
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * given["sm_scale"]
        cap = given["logits_soft_cap"]
        if cap:
            scores = torch.tanh(scores / cap) * cap
        position = torch.arange(length - count, length)[:, None]
        key_position = torch.arange(length)[None, :]
        hidden = torch.zeros(count, length, dtype=torch.bool)
        if given.get("causal", True):
            hidden |= key_position > position
        if given["window_left"] >= 0:
            hidden |= key_position < position - given["window_left"]
        scores = scores.masked_fill(hidden, -torch.inf)
        if self.sinks is not None:
            scores = torch.cat((scores, self.sinks[:, None, None].expand(-1, count, 1)), dim=-1)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :length], values)


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    real = "BatchPrefillWithPagedKVCacheWrapper"

    def take(self, given: dict[str, Any]) -> None:
        self.query_starts = given["qo_indptr"].tolist()
        self.rows(
            given["paged_kv_indptr"], given["paged_kv_indices"], given["paged_kv_last_page_len"], given["page_size"]
        )


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    real = "BatchDecodeWithPagedKVCacheWrapper"
    plan_name = "_plan_impl"

    def take(self, given: dict[str, Any]) -> None:
        starts, pages, last = given["indptr"], given["indices"], given["last_page_len"]
        if self.made.get("use_cuda_graph"):
            assert len(last) == len(self.made["paged_kv_last_page_len_buffer"]), "a graph's rows are fixed"
            buffer = self.made["paged_kv_indices_buffer"]
            assert len(pages) <= len(buffer), "more pages than the graph's list holds"
            buffer[: len(pages)] = pages
            pages = buffer[: len(pages)]
        self.query_starts = list(range(len(last) + 1))
        self.rows(starts, pages, last, given["page_size"])


class WithSinks(Wrapper):
    """What is compiled into a wrapper for sinks must be what it is planned for."""

    def sinks_of(self, *more: Any) -> torch.Tensor | None:
        sinks, scale = more
        made, given = self.made, self.given
        assert sinks.dtype == torch.float32 and sinks.shape == (given["num_qo_heads"],)
        assert scale == given["sm_scale"] and not given["logits_soft_cap"]
        assert made["head_dim_qk"] == made["head_dim_vo"] == given.get("head_dim", given.get("head_dim_qk"))
        assert made["window_left"] == given["window_left"] and made["q_data_type"] == given["q_data_type"]
        found: torch.Tensor = sinks
        return found


class BatchAttentionWithAttentionSinkWrapper(WithSinks, BatchPrefillWithPagedKVCacheWrapper):
    real = "BatchAttentionWithAttentionSinkWrapper"
    planned_as = "BatchPrefillWithPagedKVCacheWrapper"


class BatchDecodeWithAttentionSinkWrapper(WithSinks, BatchDecodeWithPagedKVCacheWrapper):
    real = "BatchDecodeWithAttentionSinkWrapper"
    planned_as = "BatchDecodeWithPagedKVCacheWrapper"

    def take(self, given: dict[str, Any]) -> None:
        self.made |= self.made.get("kwargs", {})  # handed on to the wrapper without sinks
        super().take(given)


def top_k_mask_logits(*arguments: Any, **keywords: Any) -> torch.Tensor:
    """All that reach the k-th largest stay, ties too."""
    call = bind(SIGNATURES, "top_k_mask_logits", *arguments, **keywords)
    logits, top_k = call["logits"], call["top_k"]
    assert logits.is_contiguous() and top_k.dtype == torch.int32 and bool((top_k > 0).all())
    kth = logits.sort(dim=-1, descending=True).values.gather(1, top_k[:, None].long() - 1)
    masked: torch.Tensor = logits.masked_fill(logits < kth, -torch.inf)
    return masked


def top_p_renorm_probs(*arguments: Any, **keywords: Any) -> torch.Tensor:
    """All that reach the threshold at which the sum is enough stay, and add up to one."""
    call = bind(SIGNATURES, "top_p_renorm_probs", *arguments, **keywords)
    probabilities, top_p = call["probs"], call["top_p"]
    assert call["is_deterministic"], "sums in the order of arrival would make a draw depend on the batch"
    assert probabilities.dtype == top_p.dtype == torch.float32 and bool(((top_p > 0) & (top_p < 1)).all())
    ordered = probabilities.sort(dim=-1, descending=True).values.double()
    kept = (ordered.cumsum(dim=-1) - ordered < top_p[:, None]).sum(dim=-1, keepdim=True).clamp(min=1)
    threshold = ordered.gather(1, kept - 1).float()
    remaining = probabilities.masked_fill(probabilities < threshold, 0.0)
    renormed: torch.Tensor = remaining / remaining.sum(dim=-1, keepdim=True)
    return renormed


def apply_rope_with_cos_sin_cache_inplace(*arguments: Any, **keywords: Any) -> None:
    call = bind(SIGNATURES, "apply_rope_with_cos_sin_cache_inplace", *arguments, **keywords)
    for name in ("query", "key"):
        turn_in_place(call[name], call["positions"], call["head_size"], call["cos_sin_cache"], call["is_neox"])


def turn_in_place(
    flat: torch.Tensor, positions: torch.Tensor, head_size: int, cache: torch.Tensor, is_neox: bool
) -> None:
    """What both libraries' rotations do to one argument, pairs left where they were."""
    assert positions.dtype == torch.int64 and cache.dtype == torch.float32 and flat.stride(-1) == 1
    heads = flat.view(flat.shape[0], -1, head_size)
    cosine, sine = cache[positions][:, None].chunk(2, dim=-1)
    rotated_dim = cache.shape[1]
    half = rotated_dim // 2
    if is_neox:
        first, second = heads[..., :half], heads[..., half:rotated_dim]
    else:
        first, second = heads[..., 0:rotated_dim:2], heads[..., 1:rotated_dim:2]
    turned = first * cosine - second * sine, second * cosine + first * sine
    first.copy_(turned[0])
    second.copy_(turned[1])
