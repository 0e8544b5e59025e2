"""How ranks of one model share tensors: the communicator that layers call, and how a dimension is split over ranks."""

from typing import Protocol

import torch


class Communicator(Protocol):
    """The collectives that layers need. With one rank each is the identity."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, on every rank; may write into `tensor`."""

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        """The ranks' tensors side by side along the last dimension, in rank order, on every rank."""


class SingleRank:
    """A world of one."""

    rank = 0
    world = 1

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


def head_share(kv_heads: int, communicator: Communicator) -> slice:
    """This rank's KV heads; with fewer heads than ranks, neighbouring ranks hold a copy of the same one."""
    if kv_heads >= communicator.world:
        return share(kv_heads, communicator, "num_key_value_heads")
    if communicator.world % kv_heads:
        raise ValueError(
            f"num_key_value_heads ({kv_heads}) must divide the number of tensor-parallel ranks ({communicator.world})"
        )
    head = communicator.rank * kv_heads // communicator.world
    return slice(head, head + 1)
