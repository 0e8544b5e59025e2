"""Ranks that share a GPU exchange through the host, and say so to whoever would record a graph."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from model_runner.layers.parallel import SingleRank
from model_runner.parallel.group import ProcessRanks, open_group
from model_runner.parallel.membership import gpus_are_shared, membership_of, take_device
from protocol.control import Role
from runtime.engine_config import ProcessSpec
from runtime.server_args import ServerArgs
from tests.model_runner.conftest import make_config


@pytest.fixture
def alone() -> Iterator[ProcessRanks]:
    ranks = open_group(HashStore(), 0, 1, torch.device("cpu"), 10.0, one_host=True, shared_gpu=True)
    yield ranks
    ranks.close()


def test_every_collective_gives_its_result_on_the_ranks_device(alone: ProcessRanks) -> None:
    values = torch.arange(6.0).view(2, 3).T
    for collective in (alone.all_reduce, alone.all_gather_last, alone.broadcast):
        found = collective(values)
        assert torch.equal(found, values) and found.device == values.device
    assert alone.smallest(7) == 7
    assert alone.waits and not SingleRank().waits


@pytest.mark.parametrize(
    ("device", "shared", "backend", "waits"),
    [("cpu", False, "gloo", False), ("cuda", False, "nccl", False), ("cuda", True, "gloo", True)],
)
def test_who_carries_what(
    device: str, shared: bool, backend: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, object]] = []
    monkeypatch.setattr(dist, "init_process_group", lambda name, **options: asked.append((name, options["device_id"])))
    place = torch.device(device)
    ranks = open_group(HashStore(), 0, 2, place, 10.0, one_host=True, shared_gpu=shared)
    assert asked == [(backend, place if backend == "nccl" else None)] and ranks.waits is waits
    assert not dist.is_initialized()


@pytest.mark.parametrize(("gpus", "rank", "device", "shared"), [(2, 1, "cuda:1", False), (1, 1, "cuda:0", True)])
def test_two_ranks_find_their_gpus(
    gpus: int, rank: int, device: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    config = make_config(args=ServerArgs(tp_size=2), device="cuda")
    role: Role = "rank"
    spec = ProcessSpec(role, rank, 1, "", "", "", "", 1, rank=rank)
    assert str(take_device(config, membership_of(config, spec))) == device
    assert gpus_are_shared(config) is shared
