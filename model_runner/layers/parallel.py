"""How ranks of one model share tensors: the communicator that layers call, and how a dimension is split over ranks."""

from typing import Protocol

import torch


class Communicator(Protocol):
    """The collectives that layers need. With one rank each is the identity."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def waits(self) -> bool:
        """Whether a collective waits for the device, so that no captured graph can hold one."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, on every rank; may write into `tensor`."""

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        """The ranks' tensors side by side along the last dimension, in rank order, on every rank."""


class SingleRank:
    """A world of one."""

    rank = 0
    world = 1
    waits = False

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def share(total: int, communicator: Communicator, what: str) -> slice:
    """This rank's equal share of `total` things; ValueError naming `what` if they can't be dealt evenly."""
    if total % communicator.world:
        raise ValueError(f"{what} ({total}) can't be divided over {communicator.world} tensor-parallel ranks")
    size = total // communicator.world
    return slice(communicator.rank * size, (communicator.rank + 1) * size)


def head_shares(heads: int, kv_heads: int, communicator: Communicator) -> tuple[slice, slice]:
    """This rank's query heads and the KV heads that they read.

    KV heads are dealt whole with their query heads, as evenly as they go: three over two ranks are one and two. With
    fewer KV heads than ranks, neighbouring ranks hold a copy of the same one and share its query heads out.
    """
    rank, world = communicator.rank, communicator.world
    if kv_heads >= world:
        start, stop = rank * kv_heads // world, (rank + 1) * kv_heads // world
        per_kv = heads // kv_heads
        return slice(start * per_kv, stop * per_kv), slice(start, stop)
    if world % kv_heads:
        raise ValueError(f"num_key_value_heads ({kv_heads}) must divide the number of tensor-parallel ranks ({world})")
    head = rank * kv_heads // world
    return share(heads, communicator, "num_attention_heads"), slice(head, head + 1)
