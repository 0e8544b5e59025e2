"""The reference backend against each row's full score matrix, with pages in random places."""

from dataclasses import dataclass, field

import numpy
import pytest
import torch

from model_runner.attention.interface import AttentionSpec, LayerKV
from model_runner.attention.torch_backend import TorchAttention
from model_runner.inputs import InputBuilder, PlanRows
from protocol.ids import pack_ids
from protocol.plan import BatchPlan, PageDelta

PAGE_SIZE = 4


@dataclass(frozen=True)
class Case:
    name: str
    heads: int = 4
    kv_heads: int = 2
    key_dim: int = 8
    value_dim: int = 8
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    causal: bool = True
    lengths: tuple[int, ...] = (1, 23, 9, 9, 3)
    chunks: tuple[int, ...] = (1000,)


@dataclass
class Sequence:
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    done: int = 0
    outputs: list[torch.Tensor] = field(default_factory=list)


CASES = [
    Case("grouped"),
    Case("one kv head", kv_heads=1),
    Case("as many kv heads", kv_heads=4),
    Case("chunks", chunks=(5, 3)),
    Case("token by token", chunks=(1,)),
    Case("equal rows", lengths=(6, 6, 6), chunks=(3,)),
    Case("long and short", lengths=(700, 5, 1, 530), chunks=(600, 1)),
    Case("window", window=5, chunks=(4,)),
    Case("window larger than all", window=1000, chunks=(4,)),
    Case("soft cap", soft_cap=3.0, chunks=(7,)),
    Case("sinks", sinks=True, chunks=(7,)),
    Case("all together", sinks=True, soft_cap=2.0, window=6, chunks=(7, 1)),
    Case("encoder", causal=False),
    Case("encoder with window", causal=False, window=4),
    Case("other value width", value_dim=5, chunks=(6,)),
    Case("values inside keys", kv_heads=1, value_dim=0, chunks=(6,)),
]


def naive(sequence: Sequence, spec: AttentionSpec) -> torch.Tensor:
    """[tokens, heads, v_head_dim] one query and one head at a time."""
    tokens, heads = sequence.query.shape[:2]
    output = torch.zeros(tokens, heads, spec.v_head_dim)
    share = heads // sequence.key.shape[1]
    for position in range(tokens):
        seen = list(range(position + 1 if spec.causal else tokens))
        if spec.sliding_window is not None:
            seen = [other for other in seen if position - other < spec.sliding_window]
        for head in range(heads):
            scores = sequence.key[seen, head // share] @ sequence.query[position, head] * spec.scale
            if spec.logit_soft_cap is not None:
                scores = spec.logit_soft_cap * torch.tanh(scores / spec.logit_soft_cap)
            exponentials = torch.exp(scores)
            total = exponentials.sum()
            if spec.sinks is not None:
                total = total + torch.exp(spec.sinks[head])
            output[position, head] = exponentials / total @ sequence.value[seen, head // share]
    return output


def make_sequences(case: Case, generator: torch.Generator) -> list[Sequence]:
    made = []
    for length in case.lengths:
        key = torch.randn(length, case.kv_heads, case.key_dim, generator=generator)
        value = torch.randn(length, case.kv_heads, case.value_dim, generator=generator)
        query = torch.randn(length, case.heads, case.key_dim, generator=generator)
        made.append(Sequence(query, key, value if case.value_dim else key[..., :6]))
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_against_the_full_matrix(case: Case) -> None:
    generator = torch.Generator().manual_seed(1)
    sequences = make_sequences(case, generator)
    spec = AttentionSpec(
        scale=0.4,
        v_head_dim=case.value_dim or 6,
        sliding_window=case.window,
        logit_soft_cap=case.soft_cap,
        sinks=torch.randn(case.heads, generator=generator) if case.sinks else None,
        causal=case.causal,
    )
    backend = TorchAttention(torch.device("cpu"), torch.float32)
    pages = 1 + sum(-(-length // PAGE_SIZE) for length in case.lengths)
    # Layer 0 is there so that a wrong layer index shows.
    backend.make_pool([LayerKV(1, 2, 2), LayerKV(case.kv_heads, case.key_dim, case.value_dim)], pages, PAGE_SIZE)
    builder = InputBuilder(8, PAGE_SIZE, torch.device("cpu"))
    free = numpy.random.default_rng(2).permutation(numpy.arange(1, pages)).tolist()
    slots = [5, 2, 7, 0, 3][: len(sequences)]
    for slot, length in zip(slots, case.lengths, strict=True):
        builder.apply([PageDelta(slot, 0, pack_ids(free.pop() for _ in range(-(-length // PAGE_SIZE))))])
    step = 0
    while any(sequence.done < len(sequence.query) for sequence in sequences):
        chunk = case.chunks[step % len(case.chunks)]
        step += 1
        fed = [
            (slot, sequence, min(chunk, len(sequence.query) - sequence.done))
            for slot, sequence in zip(slots, sequences, strict=True)
            if sequence.done < len(sequence.query)
        ]
        run_step(backend, builder, fed, spec, bool(case.value_dim))
    for sequence in sequences:
        torch.testing.assert_close(torch.cat(sequence.outputs), naive(sequence, spec), atol=2e-5, rtol=1e-4)


def run_step(
    backend: TorchAttention,
    builder: InputBuilder,
    fed: list[tuple[int, Sequence, int]],
    spec: AttentionSpec,
    has_values: bool,
) -> None:
    plan = BatchPlan(
        step=0,
        slots=pack_ids(slot for slot, _, _ in fed),
        new_tokens=pack_ids(count for _, _, count in fed),
        context=pack_ids(sequence.done for _, sequence, _ in fed),
        draws=pack_ids(0 for _ in fed),
        ids=pack_ids(0 for _, _, count in fed for _ in range(count)),
    )
    backend.prepare(builder.build(PlanRows.parse(plan), torch.zeros(8, dtype=torch.int64)))

    def gather(name: str) -> torch.Tensor:
        return torch.cat([getattr(each, name)[each.done : each.done + count] for _, each, count in fed])

    output = backend.attend(1, gather("query"), gather("key"), gather("value") if has_values else None, spec)
    first = 0
    for _, sequence, count in fed:
        sequence.outputs.append(output[first : first + count])
        sequence.done += count
        first += count


def test_a_layer_may_read_anothers_cache() -> None:
    generator = torch.Generator().manual_seed(1)
    sequence = make_sequences(Case("", lengths=(6,)), generator)[0]
    spec = AttentionSpec(scale=0.3, v_head_dim=8)
    backend = TorchAttention(torch.device("cpu"), torch.float32)
    backend.make_pool([LayerKV(1, 1, 1), LayerKV(2, 8, 8)], 3, PAGE_SIZE)
    builder = InputBuilder(8, PAGE_SIZE, torch.device("cpu"))
    builder.apply([PageDelta(0, 0, pack_ids([2, 1]))])
    run_step(backend, builder, [(0, sequence, 6)], spec, True)
    again = backend.attend(1, sequence.query, None, None, spec)
    torch.testing.assert_close(again, sequence.outputs[0])


def test_bytes_per_page_is_what_the_pool_takes() -> None:
    backend = TorchAttention(torch.device("cpu"), torch.bfloat16)
    layers = [LayerKV(2, 8, 4), LayerKV(1, 16, 0)]
    backend.make_pool(layers, 5, PAGE_SIZE)
    assert backend.bytes_per_page(layers, PAGE_SIZE) * 5 == sum(pool.nbytes for pool in backend._keys + backend._values)


def test_bfloat16_is_close_to_float32() -> None:
    outputs = []
    for dtype in (torch.float32, torch.bfloat16):
        sequence = make_sequences(Case("", lengths=(12,)), torch.Generator().manual_seed(1))[0]
        for name in ("query", "key", "value"):
            setattr(sequence, name, getattr(sequence, name).to(dtype))
        backend = TorchAttention(torch.device("cpu"), dtype)
        backend.make_pool([LayerKV(1, 1, 1), LayerKV(2, 8, 8)], 5, PAGE_SIZE)
        builder = InputBuilder(8, PAGE_SIZE, torch.device("cpu"))
        builder.apply([PageDelta(0, 0, pack_ids([2, 1, 4]))])
        run_step(backend, builder, [(0, sequence, 12)], AttentionSpec(scale=0.3, v_head_dim=8), True)
        outputs.append(sequence.outputs[0].float())
    torch.testing.assert_close(outputs[1], outputs[0], atol=0.03, rtol=0.03)
