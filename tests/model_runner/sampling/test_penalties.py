"""Penalties against a loop over tokens."""

import numpy
import pytest
import torch

from model_runner.sampling.penalties import Penalties
from protocol.ids import pack_ids
from protocol.plan import RowStart
from protocol.sampling import SamplingParameters

VOCAB = 12
CPU = torch.device("cpu")


def naive(logits: list[float], prompt: list[int], outputs: list[int], sampling: SamplingParameters) -> list[float]:
    result = []
    for token, logit in enumerate(logits):
        if token in prompt or token in outputs:
            logit = logit / sampling.repetition_penalty if logit > 0 else logit * sampling.repetition_penalty
        logit -= outputs.count(token) * sampling.frequency_penalty
        logit -= sampling.presence_penalty if token in outputs else 0.0
        result.append(logit)
    return result


TABLE = [
    SamplingParameters(frequency_penalty=0.7),
    SamplingParameters(frequency_penalty=-1.2),
    SamplingParameters(presence_penalty=1.5),
    SamplingParameters(repetition_penalty=1.8),
    SamplingParameters(repetition_penalty=0.6),
    SamplingParameters(frequency_penalty=0.3, presence_penalty=0.4, repetition_penalty=1.3),
]


def start(slot: int, sampling: SamplingParameters, prompt: list[int], outputs: list[int]) -> RowStart:
    return RowStart(slot, sampling, 0, pack_ids(prompt), pack_ids(outputs))


@pytest.mark.parametrize("sampling", TABLE, ids=str)
def test_against_the_definition(sampling: SamplingParameters) -> None:
    penalties = Penalties(8, VOCAB, CPU)
    prompt, outputs = [1, 2, 2, 5], [2, 7, 7, 9]
    penalties.start(start(3, sampling, prompt, outputs[:1]))
    slots = numpy.array([0, 3])
    for token in outputs[1:]:
        penalties.learn(slots, torch.tensor([4, token]), torch.tensor([True, True]))
    penalties.learn(slots, torch.tensor([4, -1]), torch.tensor([True, False]))
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(0))
    expected = naive(logits[1].tolist(), prompt, outputs, sampling)
    untouched = logits[0].clone()
    penalties.apply(logits, slots)
    torch.testing.assert_close(logits[1], torch.tensor(expected))
    assert torch.equal(logits[0], untouched)


def test_rows_with_different_penalties_in_one_step() -> None:
    penalties = Penalties(8, VOCAB, CPU)
    histories = [([row], [row, 5, row]) for row in range(len(TABLE))]
    for slot, (sampling, (prompt, outputs)) in enumerate(zip(TABLE, histories, strict=True)):
        penalties.start(start(slot, sampling, prompt, outputs))
    logits = torch.randn(len(TABLE), VOCAB, generator=torch.Generator().manual_seed(0))
    expected = [
        naive(row, *history, sampling) for row, history, sampling in zip(logits.tolist(), histories, TABLE, strict=True)
    ]
    penalties.apply(logits, numpy.arange(len(TABLE)))
    torch.testing.assert_close(logits, torch.tensor(expected))


def test_the_same_slot_twice_in_one_step_counts_twice() -> None:
    penalties = Penalties(8, VOCAB, CPU)
    penalties.start(start(0, TABLE[0], [], []))
    penalties.learn(numpy.array([0, 0]), torch.tensor([3, 3]), torch.tensor([True, True]))
    logits = torch.zeros(1, VOCAB)
    penalties.apply(logits, numpy.array([0]))
    assert float(logits[0, 3]) == pytest.approx(-1.4)


def test_memory_is_held_for_penalised_rows_only() -> None:
    penalties = Penalties(8, VOCAB, CPU)
    penalties.start(start(0, SamplingParameters(), [1], []))
    assert penalties.nbytes == 0
    penalties.start(start(1, TABLE[0], [1], []))
    assert penalties.nbytes == VOCAB * 4
    penalties.start(start(2, TABLE[3], [1], []))
    penalties.release(1)
    penalties.release(2)
    penalties.release(0)
    assert penalties.nbytes == 0


def test_a_slot_taken_again_starts_from_nothing() -> None:
    penalties = Penalties(8, VOCAB, CPU)
    penalties.start(start(0, TABLE[3], [1], [2]))
    penalties.start(start(1, TABLE[3], [1], [2]))
    penalties.release(0)
    penalties.start(start(0, TABLE[3], [3], []))
    logits = torch.ones(1, VOCAB)
    penalties.apply(logits, numpy.array([0]))
    assert [token for token, logit in enumerate(logits[0].tolist()) if logit != 1.0] == [3]
