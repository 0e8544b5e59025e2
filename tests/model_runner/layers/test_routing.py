"""Expert choice on logits small enough to check by eye."""

from typing import Any

import pytest
import torch

from model_runner.layers.declarations import RoutingDeclaration
from model_runner.layers.parallel import SingleRank
from model_runner.layers.routing import Router
from model_runner.loading.weights import LoadState, Weights
from model_runner.quantization.forms import DenseForm


class Identity:
    """A source whose router weight makes the hidden state itself the logits."""

    total_bytes = 0

    def names(self) -> tuple[str, ...]:
        return ()

    def has(self, name: str) -> bool:
        return True

    def shape(self, name: str, expected: tuple[int, ...]) -> tuple[int, ...]:
        return expected

    def read(self, name: str, shape: tuple[int, ...], region: Any) -> torch.Tensor:
        if name.endswith("correction"):
            return torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.9])
        return torch.eye(shape[0]) if len(shape) == 2 else torch.zeros(shape)

    def stored_bytes(self, name: str) -> int:
        return 0

    def close(self) -> None: ...


def route(declared: RoutingDeclaration, logits: list[float]) -> dict[int, float]:
    state = LoadState(Identity(), torch.float32, torch.device("cpu"), SingleRank(), DenseForm)
    gains, experts = Router(Weights(state), declared, len(logits))(torch.tensor([logits]))
    return dict(zip(experts[0].tolist(), gains[0].tolist(), strict=True))


LOGITS = [3.0, 2.9, 2.8, -4.0, 2.5, -9.0]


def test_softmax_over_all_or_over_the_chosen() -> None:
    shares = torch.tensor(LOGITS).softmax(0)
    whole = route(RoutingDeclaration(6, 2, "softmax", normalise=False, scale=2.0), LOGITS)
    assert whole == pytest.approx({0: 2 * shares[0].item(), 1: 2 * shares[1].item()})
    normalised = route(RoutingDeclaration(6, 2, "softmax", normalise=True), LOGITS)
    assert normalised == pytest.approx(route(RoutingDeclaration(6, 2, "softmax_of_chosen", normalise=False), LOGITS))
    assert sum(normalised.values()) == pytest.approx(1.0)


def test_groups_by_best_expert_or_best_two() -> None:
    """Groups are (0, 1), (2, 3), (4, 5)."""
    best = RoutingDeclaration(6, 3, "softmax", normalise=False, groups=3, groups_kept=2)
    assert set(route(best, LOGITS)) == {0, 1, 2}
    lifted = [3.0, -9.0, 2.8, 2.7, 2.5, 2.6]
    one = RoutingDeclaration(6, 2, "softmax", normalise=False, groups=3, groups_kept=1)
    assert set(route(one, lifted)) == {0, 1}
    two = RoutingDeclaration(6, 2, "softmax", normalise=False, groups=3, groups_kept=1, group_score="best_two")
    assert set(route(two, lifted)) == {2, 3}


def test_correction_decides_who_is_chosen_but_not_how_much_counts() -> None:
    declared = RoutingDeclaration(6, 1, "sigmoid", normalise=False, correction_bias="correction")
    chosen = route(declared, [0.0, -1.0, -1.0, -1.0, -1.0, -0.5])
    assert chosen == pytest.approx({5: torch.tensor(-0.5).sigmoid().item()})
