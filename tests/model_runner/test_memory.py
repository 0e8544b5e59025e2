"""Pages of the pool."""

from collections.abc import Callable

import pytest
import torch

from model_runner.memory import TooLittleMemory, count_pages
from runtime.engine_config import EngineConfig

GIB = 1 << 30


def test_tokens_become_pages_beside_the_scratch_page(engine_config: Callable[..., EngineConfig]) -> None:
    config = engine_config(kv_tokens=33, page_size=16)
    assert count_pages(config, 1000, torch.device("cpu")) == 4


def test_gpu_memory_beside_the_weights(
    engine_config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * GIB, 80 * GIB))
    config = engine_config(kv_tokens=None, device="cuda")
    pages = count_pages(config, GIB, torch.device("cuda", 0), activation_bytes=3 * GIB)
    assert pages == 68 - 20 - 3


def test_no_room_is_said(engine_config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * GIB, 80 * GIB))
    with pytest.raises(TooLittleMemory, match="mem-fraction-static"):
        count_pages(engine_config(kv_tokens=None, device="cuda"), GIB, torch.device("cuda", 0))
