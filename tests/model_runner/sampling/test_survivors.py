"""What flashinfer's thresholds leave is what the sort leaves, over a stand-in bound to its signatures."""

from types import SimpleNamespace

import pytest
import torch

from model_runner.sampling import survivors as survivors_module
from model_runner.sampling.filters import Filters
from model_runner.sampling.survivors import choose_survivors, flashinfer_survivors, sorted_survivors
from tests.model_runner.attention import flashinfer_standin

VOCAB = 200
WAYS = [
    # temperature, top_k, top_p, min_p
    (1.0, 5, 1.0, 0.0),
    (0.7, 0, 0.9, 0.0),
    (1.3, 0, 1.0, 0.1),
    (1.0, 30, 0.8, 0.02),
    (1.0, 0, 1.0, 0.0),
    (4.0, 1, 0.0001, 1.0),
    (0.1, VOCAB, 0.9999, 0.0),
]


def filters() -> Filters:
    temperature, top_k, top_p, min_p = (torch.tensor(column) for column in zip(*WAYS, strict=True))
    return Filters(temperature, top_k, top_p, min_p)


@pytest.mark.parametrize("kind", ["spread", "ties", "banned"])
def test_thresholds_leave_what_the_sort_leaves(kind: str) -> None:
    logits = torch.randn(len(WAYS), VOCAB, generator=torch.Generator().manual_seed(4)) * 3
    if kind == "ties":
        logits = logits.round()
    if kind == "banned":
        logits[:, 10:] = -torch.inf
    found = flashinfer_survivors(flashinfer_standin)(logits.clone(), filters())
    wanted = sorted_survivors(logits, filters())
    # A ban needs no filter: the noise of a logit of -inf is -inf, too.
    alive = logits > -torch.inf
    assert torch.equal(found & alive, wanted & alive)
    assert bool((found & alive).any(dim=1).all())


def test_a_row_without_an_id_left_harms_no_other() -> None:
    logits = torch.randn(len(WAYS), VOCAB, generator=torch.Generator().manual_seed(4))
    whole = flashinfer_survivors(flashinfer_standin)(logits, filters())
    logits[1] = -torch.inf
    found = flashinfer_survivors(flashinfer_standin)(logits, filters())
    assert torch.equal(found[2:], whole[2:]) and torch.equal(found[0], whole[0])


def test_who_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_survivors(torch.device("cpu")) == (sorted_survivors, "torch")
    for library, owner in ((None, "torch"), (SimpleNamespace(), "torch"), (flashinfer_standin, "flashinfer")):
        monkeypatch.setattr(survivors_module, "import_flashinfer", lambda found=library: found)
        assert choose_survivors(torch.device("cuda"))[1] == owner
