"""Parts of a step add up; the time between them does not."""

import pytest
import torch

from model_runner.step_timer import StepTimer


def test_only_parts_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1_000_000, 3_000_000, 90_000_000, 95_500_000])
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(clock))
    timer = StepTimer(torch.device("cpu"))
    timer.begin()
    timer.end()
    timer.begin()
    timer.end()
    assert timer.microseconds() == 2_000 + 5_500
