"""What may not be drawn."""

import numpy
import pytest
import torch

from model_runner.sampling.bans import Bans
from model_runner.sampling.grammar_mask import apply_mask
from protocol.ids import pack_ids
from protocol.plan import RowStart
from protocol.sampling import SamplingParameters

VOCAB = 10


def banned(
    sampling: SamplingParameters,
    prompt: list[int],
    outputs: list[int],
    drawn: list[int],
    end_ids: tuple[int, ...] = (),
) -> list[int]:
    """Ids at -inf for the draw after prompt, outputs (known at the start) and drawn ids (learnt; negative: none)."""
    bans = Bans(torch.device("cpu"))
    bans.start(RowStart(2, sampling, 0, pack_ids(prompt), pack_ids(outputs), end_ids))
    for token in drawn:
        bans.learn(2, torch.tensor([token]), torch.tensor([token >= 0]))
    logits = torch.zeros(2, VOCAB)
    position = len(prompt) + len(outputs) + sum(token >= 0 for token in drawn)
    bans.apply(logits, numpy.array([0, 2]), numpy.array([0, position]), {})
    assert not logits[0].any()
    return torch.nonzero(logits[1] == -torch.inf)[:, 0].tolist()


MIN_TOKENS = SamplingParameters(min_tokens=2)
SEQUENCES = SamplingParameters(banned_sequences=((7,), (1, 2), (4, 1, 3), (5, 6, 3)))


@pytest.mark.parametrize(
    "sampling,prompt,outputs,drawn,expected",
    [
        (MIN_TOKENS, [1, 1, 1], [], [], [8, 9]),
        (MIN_TOKENS, [1, 1, 1], [], [2], [8, 9]),
        (MIN_TOKENS, [1, 1, 1], [2], [2], []),
        (MIN_TOKENS, [1, 1, 1], [2], [-1], [8, 9]),
        (SamplingParameters(min_tokens=0), [1], [], [], []),
        (SEQUENCES, [], [], [], [7]),
        (SEQUENCES, [0], [], [], [7]),
        (SEQUENCES, [], [1], [], [2, 7]),
        (SEQUENCES, [1], [], [], [2, 7]),
        (SEQUENCES, [4], [], [1], [2, 3, 7]),
        (SEQUENCES, [4], [1], [0], [7]),
        (SEQUENCES, [], [], [4, 1], [2, 3, 7]),
        (SEQUENCES, [], [], [4, -1, 1, -1], [2, 3, 7]),
        (SEQUENCES, [0], [5], [6], [3, 7]),
        (SamplingParameters(allowed_token_ids=(0, 3)), [1], [], [], [1, 2, 4, 5, 6, 7, 8, 9]),
        (SamplingParameters(allowed_token_ids=(0, 3), banned_sequences=((3,),)), [1], [], [], list(range(1, 10))),
    ],
)
def test_table(
    sampling: SamplingParameters, prompt: list[int], outputs: list[int], drawn: list[int], expected: list[int]
) -> None:
    assert banned(sampling, prompt, outputs, drawn, end_ids=(8, 9)) == expected


def test_released_rows_ban_nothing() -> None:
    bans = Bans(torch.device("cpu"))
    bans.start(RowStart(2, SEQUENCES, 0, b""))
    assert bans.any_of(numpy.array([1, 2]))
    bans.release(2)
    assert not bans.any_of(numpy.array([1, 2]))


def test_mask_words_are_little_endian_bits_and_what_lies_beyond_is_forbidden() -> None:
    logits = torch.zeros(3, 70)
    words = torch.tensor([[1 | 1 << 5, -(2**31)], [-1, -1]], dtype=torch.int32)
    apply_mask(logits, torch.tensor([2, 0]), words)
    assert torch.nonzero(logits[2] == 0)[:, 0].tolist() == [0, 5, 63]
    assert torch.nonzero(logits[0] == 0)[:, 0].tolist() == list(range(64))
    assert not logits[1].any()
