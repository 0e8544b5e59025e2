"""Which models' decode steps can be recorded: those that never wait for the device."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model_runner.layers import experts as experts_module
from model_runner.layers.parallel import SingleRank
from model_runner.models.registry import build_model
from model_runner.warm_up import can_be_captured
from tests.gpu.conftest import Place, llama_config
from tests.model_runner.conftest import TinyModel

HERE = Place(torch.device("cpu"), None, None)


@pytest.mark.parametrize(
    ("experts", "grouped", "wanted"), [(False, False, True), (True, True, True), (True, False, False)]
)
def test_models_that_read_nothing_back(
    experts: bool, grouped: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts_module, "can_be_grouped", lambda state, widths: grouped)
    assert can_be_captured(build_model(llama_config(HERE, experts))) is wanted


def test_ranks_that_share_a_gpu_record_nothing() -> None:
    model: Any = build_model(llama_config(HERE))
    assert isinstance(model.communicator, SingleRank)
    model.communicator = SimpleNamespace(waits=True)
    assert not can_be_captured(model)


def test_foreign_models_are_launched() -> None:
    assert not can_be_captured(TinyModel())
