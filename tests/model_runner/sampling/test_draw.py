"""Draws have the distribution that their parameters say (chi-square), and filters keep what their definition keeps."""

import numpy
import pytest
import torch

from model_runner.sampling.draw import DrawParameters, draw
from model_runner.sampling.filters import Filters, find_cut, sort_descending
from model_runner.sampling.noise import draw_keys

DRAWS = 20_000


def logits_of(vocab_size: int, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def parameters(
    draws: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, first: int = 0
) -> DrawParameters:
    return DrawParameters(
        temperature=numpy.full(draws, temperature, dtype=numpy.float32),
        top_k=numpy.full(draws, top_k, dtype=numpy.int64),
        top_p=numpy.full(draws, top_p, dtype=numpy.float32),
        min_p=numpy.full(draws, min_p, dtype=numpy.float32),
        keys=draw_keys(numpy.full(draws, 42, dtype=numpy.uint64), numpy.arange(first, first + draws)),
    )


def expected_probabilities(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> torch.Tensor:
    """The definition, on a sorted vocabulary: [vocab] float64."""
    probabilities = torch.softmax(logits.double() / temperature, dim=-1)
    order = probabilities.argsort(descending=True).tolist()
    kept = order[: top_k or len(order)]
    total = float(probabilities[kept].sum())
    survivors: list[int] = []
    before = 0.0
    for token in kept:
        if survivors and before >= top_p:
            break
        survivors.append(token)
        before += float(probabilities[token]) / total
    floor = float(probabilities.max()) * min_p
    survivors = [token for token in survivors if float(probabilities[token]) >= floor]
    result = torch.zeros_like(probabilities)
    result[survivors] = probabilities[survivors] / probabilities[survivors].sum()
    return result


def chi_square_fits(drawn: torch.Tensor, expected: torch.Tensor) -> bool:
    """Ids expected fewer than 8 times are pooled; within five standard deviations of the mean."""
    counts = torch.bincount(drawn, minlength=len(expected)).double()
    assert int(counts[expected == 0].sum()) == 0, "an id was drawn that the filters exclude"
    wanted = expected * len(drawn)
    often = wanted >= 8
    cells = torch.cat((wanted[often], wanted[~often].sum()[None]))
    seen = torch.cat((counts[often], counts[~often].sum()[None]))
    cells, seen = cells[cells > 0], seen[cells > 0]
    freedom = len(cells) - 1
    chi_square = float(((seen - cells) ** 2 / cells).sum())
    return freedom == 0 or abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 5},
    {"top_k": 1},
    {"top_k": 40, "temperature": 1.7},
    {"top_p": 0.9},
    {"top_p": 0.3},
    {"top_p": 0.999, "temperature": 3.0},
    {"min_p": 0.1},
    {"min_p": 0.02, "temperature": 1.5},
    {"top_k": 30, "top_p": 0.8},
    {"top_k": 30, "top_p": 0.95, "min_p": 0.05, "temperature": 1.3},
]


@pytest.mark.parametrize("vocab_size", [60, 700])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_distribution(setting: dict[str, float], vocab_size: int) -> None:
    logits = logits_of(vocab_size)
    whole = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | setting
    vocabulary = torch.arange(vocab_size, dtype=torch.int32)
    drawn = draw(logits.expand(DRAWS, -1).clone(), parameters(DRAWS, **whole), vocabulary)  # type: ignore[arg-type]
    assert chi_square_fits(drawn, expected_probabilities(logits, **whole))  # type: ignore[arg-type]


def test_the_chi_square_test_can_fail() -> None:
    logits = logits_of(60)
    drawn = draw(logits.expand(DRAWS, -1).clone(), parameters(DRAWS), torch.arange(60, dtype=torch.int32))
    assert not chi_square_fits(drawn, expected_probabilities(logits, 1.12, 0, 1.0, 0.0))


@pytest.mark.parametrize("temperature", [1e-38, 1e-10, 0.01])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = logits_of(500).expand(4, -1).clone()
    drawn = draw(logits, parameters(4, temperature), torch.arange(500, dtype=torch.int32))
    assert drawn.tolist() == [int(logits[0].argmax())] * 4


def test_mixed_batches_draw_as_rows_alone() -> None:
    vocabulary = torch.arange(3000, dtype=torch.int32)
    settings = [
        {"temperature": 0.0},
        {},
        {"top_k": 3},
        {"top_p": 0.99, "temperature": 3.0},
        {"min_p": 0.2},
        {"top_k": 2000},
        {"top_p": 0.5, "min_p": 0.01},
    ]
    logits = torch.stack([logits_of(3000, seed) for seed in range(len(settings))])
    alone = [
        int(draw(logits[row : row + 1].clone(), parameters(1, first=row, **setting), vocabulary))  # type: ignore[arg-type]
        for row, setting in enumerate(settings)
    ]
    parts = [parameters(1, first=row, **setting) for row, setting in enumerate(settings)]  # type: ignore[arg-type]
    names = ("temperature", "top_k", "top_p", "min_p", "keys")
    together = DrawParameters(*(numpy.concatenate([getattr(part, name) for part in parts]) for name in names))
    assert draw(logits.clone(), together, vocabulary).tolist() == alone


@pytest.mark.parametrize("count", [4, 16, 64])
@pytest.mark.parametrize(
    "top_k,top_p,min_p", [(0, 0.7, 0.0), (3, 1.0, 0.0), (9, 0.6, 0.0), (0, 1.0, 0.3), (0, 0.95, 0.2), (70, 0.5, 0.0)]
)
def test_a_settled_cut_does_not_depend_on_how_many_were_looked_at(
    count: int, top_k: int, top_p: float, min_p: float
) -> None:
    # Rounded, so that many logits tie.
    logits = torch.stack([logits_of(64, seed).round() for seed in range(50)])
    filters = filters_of(50, top_k, top_p, min_p)
    values = sort_descending(logits)
    some, every = find_cut(values[:, :count], logits, filters), find_cut(values, logits, filters)
    assert bool(every.settled.all())
    for row in range(50):
        if some.settled[row]:
            assert torch.equal(logits[row] >= some.logits[row], logits[row] >= every.logits[row])
    if count == 16:
        assert bool(some.settled.any())


def filters_of(rows: int, top_k: int, top_p: float, min_p: float) -> Filters:
    return Filters(
        torch.full((rows,), 1.2), torch.full((rows,), top_k), torch.full((rows,), top_p), torch.full((rows,), min_p)
    )


def test_equals_of_the_last_survivor_survive() -> None:
    logits = torch.tensor([[3.0, 2.0, 2.0, 2.0, 1.0]])
    cut = find_cut(logits, logits, filters_of(1, 2, 1.0, 0.0))
    assert float(cut.logits) == 2.0
    assert not find_cut(logits[:, :3], logits, filters_of(1, 2, 1.0, 0.0)).settled


def test_flat_rows_are_drawn_from_beyond_the_first_candidates() -> None:
    logits = logits_of(2000, spread=0.1).expand(3000, -1).clone()
    drawn = draw(logits, parameters(3000, top_p=0.9), torch.arange(2000, dtype=torch.int32))
    expected = expected_probabilities(logits[0], 1.0, 0, 0.9, 0.0)
    assert bool((expected[drawn] > 0).all())
    assert len(set(drawn.tolist())) > 1000


def test_rows_without_any_token_end() -> None:
    logits = torch.full((2, 5000), -torch.inf)
    logits[1, 7] = 1.0
    drawn = draw(logits, parameters(2, top_p=0.9), torch.arange(5000, dtype=torch.int32))
    assert int(drawn[1]) == 7
