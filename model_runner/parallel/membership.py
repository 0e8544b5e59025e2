"""Which rank of which replica a process is, where its ranks meet, and on which device it computes."""

from dataclasses import dataclass
from datetime import timedelta

import torch
from torch._C._distributed_c10d import FileStore, Store

from runtime.engine_config import EngineConfig, ProcessSpec
from runtime.topology import rendezvous_file

LONGEST_WAIT_S = 24 * 3600.0
"""For ranks that still load their weights, where --start-timeout-s sets no limit; the supervisor watches them."""
SLOWEST_STEP_S = 300.0
"""A rank that keeps the others waiting longer in a collective is given up."""


@dataclass(frozen=True)
class Membership:
    """One process's place. `local_index` counts the engine processes of this host: its device on CUDA."""

    replica: int
    rank: int
    world: int
    local_index: int


def membership_of(config: EngineConfig, spec: ProcessSpec) -> Membership:
    world = config.args.tp_size
    replica = spec.index if spec.role == "scheduler" else spec.index // world
    return Membership(replica, spec.rank, world, replica * world + spec.rank)


def take_device(config: EngineConfig, member: Membership) -> torch.device:
    """The device of this process, made torch's current one."""
    if config.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", member.local_index)
    torch.cuda.set_device(device)
    return device


def open_store(config: EngineConfig, spec: ProcessSpec, member: Membership) -> Store:
    """Where the ranks of this incarnation of the replica meet."""
    store = FileStore(str(rendezvous_file(config.run_dir, member.replica, spec.incarnation)), member.world)
    store.set_timeout(timedelta(seconds=config.args.start_timeout_s or LONGEST_WAIT_S))
    return store


def publish_endpoint(store: Store, rank: int, endpoint: str) -> None:
    """Where this rank waits for plans."""
    store.set(f"plans/{rank}", endpoint)


def plan_endpoints(store: Store, world: int) -> dict[int, str]:
    """Where each rank but rank 0 waits for plans; waits until all have said so."""
    return {rank: store.get(f"plans/{rank}").decode() for rank in range(1, world)}
