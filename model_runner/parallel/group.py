"""The collectives of one replica's ranks: those that layers call, and the few of a step."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from model_runner.layers.parallel import Communicator, SingleRank

LEADER = 0
"""The rank that lives beside the scheduler and draws."""


class LostRankError(Exception):
    """A collective failed: another rank is gone, or did not come in time."""


class RankGroup(Communicator, Protocol):
    """What a runner needs of its group beside what layers do."""

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's tensor, on every rank; the others' `tensor` says shape and dtype, and is overwritten."""

    def smallest(self, value: int) -> int:
        """The least of the ranks' values, on every rank."""


class OneRank(SingleRank):
    """A world of one."""

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def smallest(self, value: int) -> int:
        return value


class ProcessRanks:
    """Ranks in processes of their own, over NCCL (one GPU each), or gloo: on CPU, and for ranks that share a GPU, whose
    tensors then go through the host.

    Nothing here can be left half way: a rank that can't go on (out of memory, a bug) ends its process, the others'
    collectives fail with LostRankError at once (gloo sees the connection close) or after `timeout_s`, and the replica
    starts again as a whole.
    """

    def __init__(self, rank: int, world: int, device: torch.device, through_host: bool = False) -> None:
        self.rank = rank
        self.world = world
        self.waits = through_host
        self._device = device
        self._exchange_device = torch.device("cpu") if through_host else device

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        shared = self._exchanged(tensor)
        self._together(lambda: dist.all_reduce(shared))
        return shared.to(self._device)

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        shared = self._exchanged(tensor)
        gathered = shared.new_empty(self.world, *shared.shape)
        self._together(lambda: dist.all_gather(list(gathered.unbind(0)), shared))
        return gathered.to(self._device).movedim(0, -2).flatten(-2)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        shared = self._exchanged(tensor)
        self._together(lambda: dist.broadcast(shared, LEADER))
        return shared.to(self._device)

    def smallest(self, value: int) -> int:
        shared = torch.tensor([value], dtype=torch.int64, device=self._exchange_device)
        self._together(lambda: dist.all_reduce(shared, dist.ReduceOp.MIN))
        return int(shared.item())

    def _exchanged(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._exchange_device).contiguous()

    def close(self) -> None:
        dist.destroy_process_group()

    def _together(self, collective: Callable[[], object]) -> None:
        try:
            collective()
        except RuntimeError as error:
            raise LostRankError(
                f"rank {self.rank} of {self.world} lost the others of its replica in a step ({error})"
            ) from error


def open_group(
    store: Store,
    rank: int,
    world: int,
    device: torch.device,
    timeout_s: float,
    *,
    one_host: bool,
    shared_gpu: bool = False,
) -> ProcessRanks:
    """Waits until every rank has joined through the store. `shared_gpu`: some ranks have one GPU together, which NCCL
    refuses."""
    over_nccl = device.type == "cuda" and not shared_gpu
    if one_host:
        # Without a name to listen on, gloo takes the host's public address.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if over_nccl else "gloo",
        store=PrefixStore("collectives", store),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if over_nccl else None,
    )
    return ProcessRanks(rank, world, device, through_host=shared_gpu)
