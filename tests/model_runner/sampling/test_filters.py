"""Any logits, any filters: what is drawn is what the definition keeps."""

import math

import numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_runner.sampling.draw import DrawParameters, draw
from model_runner.sampling.noise import draw_keys

VOCAB = 300
VALUES = (-math.inf, -40.0, -1.0, 0.0, 0.5, 0.5000001, 3.0, 30.0)
VOCABULARY = torch.arange(VOCAB, dtype=torch.int32)


def survivors(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, slack: float
) -> set[int]:
    """In double precision, ties kept. `slack` widens (or, negative, narrows) top-p and min-p by rounding's reach."""
    largest = max(logits)
    weights = [math.exp((logit - largest) / temperature) for logit in logits]
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    if top_k:
        smallest = logits[order[min(top_k, len(order)) - 1]]
        order = [token for token in order if logits[token] >= smallest]
    total, before, cut = sum(weights[token] for token in order), 0.0, order[0]
    for token in order:
        if top_p < 1.0 and before >= (top_p + slack) * total:
            break
        cut = token
        before += weights[token]
    kept = {token for token in order if logits[token] >= logits[cut]}
    return {token for token in kept if weights[token] >= min_p * (1 - slack) and logits[token] > -math.inf}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=12),
    st.sampled_from([0.05, 0.7, 1.0, 4.0]),
    st.sampled_from([0, 1, 2, 50, 127, 128, 299, 5000]),
    st.sampled_from([1e-6, 0.3, 0.9, 0.9999, 1.0]),
    st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    st.randoms(use_true_random=False),
)
def test_draws_survive_the_definition(
    some: list[float], temperature: float, top_k: int, top_p: float, min_p: float, random: object
) -> None:
    generator = numpy.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    row = [float(value) for value in generator.choice(some, VOCAB)]
    row[int(generator.integers(VOCAB))] = 1.0  # never all of them -inf
    draws = 16
    parameters = DrawParameters(
        numpy.full(draws, temperature, dtype=numpy.float32),
        numpy.full(draws, top_k, dtype=numpy.int64),
        numpy.full(draws, top_p, dtype=numpy.float32),
        numpy.full(draws, min_p, dtype=numpy.float32),
        draw_keys(numpy.full(draws, 1, dtype=numpy.uint64), numpy.arange(draws)),
    )
    drawn = set(draw(torch.tensor([row] * draws), parameters, VOCABULARY).tolist())
    allowed = survivors(row, temperature, top_k, top_p, min_p, slack=1e-5)
    assert drawn <= allowed
    if len(allowed) == 1:
        assert drawn == allowed
