"""Draws from the kernels' contenders are those by plain torch, id by id."""

import ctypes
from collections.abc import Iterator

import numpy
import pytest
import torch

from model_runner.kernels.selection import ContenderSearch
from model_runner.sampling.draw import DrawParameters, draw
from model_runner.sampling.noise import draw_keys

ROWS = 24


@pytest.fixture(scope="module")
def search(library: ctypes.CDLL) -> Iterator[ContenderSearch]:
    engine = library.candor_create(2)
    yield ContenderSearch(library, engine)
    library.candor_destroy(engine)


def logits_of(vocab_size: int, spread: float) -> torch.Tensor:
    """Rows that lie further apart than they are long, as the padded output head leaves them."""
    wide = torch.randn(ROWS, vocab_size + 5, generator=torch.Generator().manual_seed(vocab_size)) * spread
    return wide[:, :vocab_size]


def parameters(temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> DrawParameters:
    return DrawParameters(
        temperature=numpy.full(ROWS, temperature, dtype=numpy.float32),
        top_k=numpy.full(ROWS, top_k, dtype=numpy.int64),
        top_p=numpy.full(ROWS, top_p, dtype=numpy.float32),
        min_p=numpy.full(ROWS, min_p, dtype=numpy.float32),
        keys=draw_keys(numpy.arange(ROWS, dtype=numpy.uint64), numpy.arange(7, 7 + ROWS)),
    )


def same_draws(logits: torch.Tensor, asked: DrawParameters, search: ContenderSearch) -> bool:
    vocabulary = torch.arange(logits.shape[1], dtype=torch.int32)
    by_torch = draw(logits.clone(), asked, vocabulary)
    return torch.equal(draw(logits, asked, vocabulary, search=search), by_torch)


@pytest.mark.parametrize("vocab_size", [1, 7, 200, 5003])
@pytest.mark.parametrize("spread", [0.0, 0.5, 6.0])
@pytest.mark.parametrize(
    "asked",
    [
        parameters(1.0),
        parameters(0.2),
        parameters(100.0),
        parameters(1e-20),
        parameters(0.8, top_p=0.9),
        parameters(1.5, top_p=0.7),
        parameters(1.5, top_p=0.999),
        parameters(1.0, top_k=3),
        parameters(1.0, top_k=700, top_p=0.5),
        parameters(0.7, min_p=0.05),
    ],
)
def test_draws_are_those_of_torch(
    search: ContenderSearch, vocab_size: int, spread: float, asked: DrawParameters
) -> None:
    assert same_draws(logits_of(vocab_size, spread), asked, search)


@pytest.mark.parametrize("asked", [parameters(1.0), parameters(0.8, top_p=0.9)])
def test_masked_rows_draw_what_is_left(search: ContenderSearch, asked: DrawParameters) -> None:
    logits = logits_of(3000, 2.0).contiguous()
    logits[:, 5:2990] = -torch.inf
    logits[1] = -torch.inf
    logits[1, 2345] = -4.0
    assert same_draws(logits, asked, search)


@pytest.mark.parametrize("asked", [parameters(1.0), parameters(0.8, top_p=0.9), parameters(1.0, top_k=5)])
def test_spoiled_rows_spoil_no_other(search: ContenderSearch, asked: DrawParameters) -> None:
    logits = logits_of(3000, 2.0).contiguous()
    vocabulary = torch.arange(3000, dtype=torch.int32)
    clean = draw(logits.clone(), asked, vocabulary, search=search)
    logits[3, 100:200] = torch.nan
    logits[4] = torch.nan
    logits[5, 17] = torch.inf
    logits[6] = -torch.inf
    found = draw(logits, asked, vocabulary, search=search)
    sound = [row for row in range(ROWS) if row not in (3, 4, 5, 6)]
    assert torch.equal(found[sound], clean[sound])
    assert bool(((found >= 0) & (found < 3000)).all())


def test_a_row_that_torch_must_look_at_leaves_the_others_to_the_search(search: ContenderSearch) -> None:
    logits = logits_of(500, 2.0).contiguous()
    logits[3] = 1.0
    searched: list[int] = []

    def watched(some: torch.Tensor, asked: DrawParameters) -> torch.Tensor | None:
        found = search(some, asked)
        searched.append(len(some) if found is not None else 0)
        return found

    vocabulary = torch.arange(500, dtype=torch.int32)
    drawn = draw(logits, parameters(1e-30), vocabulary, search=watched)
    assert torch.equal(drawn, draw(logits, parameters(1e-30), vocabulary))
    assert searched == [0, *[int(row != 3) for row in range(ROWS)]]


def test_few_contenders_are_left_of_a_vocabulary(search: ContenderSearch) -> None:
    contenders = search(logits_of(50_000, 2.0), parameters(1.0))
    assert contenders is not None
    assert contenders.shape[1] <= 4
    assert search(torch.ones(ROWS, 500), parameters(1e-30)) is None
