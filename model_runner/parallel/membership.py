"""Which rank of which replica a process is, where its ranks meet, and on which device it computes."""

import os
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch._C._distributed_c10d import FileStore, Store, TCPStore

from model_runner.parallel.group import LEADER, ProcessRanks, open_group
from model_runner.parallel.watch import BEAT_S, FALLEN, LOST_AFTER_S, RankWatch
from protocol.control import Failed
from runtime.channels import report_once
from runtime.engine_config import EngineConfig, ProcessSpec
from runtime.nodes import host_and_port
from runtime.process import peer_of, process_name
from runtime.topology import rendezvous_file

LONGEST_WAIT_S = 24 * 3600.0
"""For ranks that still load their weights, where --start-timeout-s sets no limit; the supervisor watches them."""
SLOWEST_STEP_S = 300.0
"""A rank that keeps the others waiting longer in a collective is given up."""


@dataclass(frozen=True)
class Membership:
    """One process's place. `local_index` counts the engine processes of this node: its device on CUDA."""

    replica: int
    rank: int
    world: int
    local_index: int


def membership_of(config: EngineConfig, spec: ProcessSpec) -> Membership:
    world = config.args.tp_size
    replica = spec.index if spec.role == "scheduler" else spec.index // world
    on_node = world // config.args.nnodes
    return Membership(replica, spec.rank, world, replica * on_node + spec.rank % on_node)


def take_device(config: EngineConfig, member: Membership) -> torch.device:
    """The device of this process, made torch's current one."""
    if config.device == "cpu":
        return torch.device("cpu")
    # A server never starts with more ranks than GPUs; the tests of a host with one GPU do.
    device = torch.device("cuda", member.local_index % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def gpus_are_shared(config: EngineConfig) -> bool:
    args = config.args
    return config.device == "cuda" and args.tp_size // args.nnodes * args.dp_size > torch.cuda.device_count()


def join_replica(config: EngineConfig, spec: ProcessSpec, endpoint: str) -> tuple[ProcessRanks, Store]:
    """Waits for all ranks of the replica's newest incarnation. `endpoint` is where this one takes plans."""
    member = membership_of(config, spec)
    device = take_device(config, member)
    patience = timedelta(seconds=config.args.start_timeout_s or LONGEST_WAIT_S)
    address = config.args.dist_init_addr
    store: Store
    if address is None:
        store = FileStore(str(rendezvous_file(config.run_dir, member.replica, spec.incarnation)), member.world)
        store.set_timeout(patience)
    else:
        store = _meet_over_tcp(address, member, patience)
        _watch_others(store.clone(), spec, member)  # type: ignore[attr-defined]  # torch has it, its stubs not
    store.set(f"plans/{member.rank}", endpoint)
    group = open_group(
        store,
        member.rank,
        member.world,
        device,
        SLOWEST_STEP_S,
        one_host=address is None,
        shared_gpu=gpus_are_shared(config),
    )
    return group, store


def _meet_over_tcp(address: str, member: Membership, patience: timedelta) -> Store:
    """Rank 0 keeps the store, so a new incarnation of it begins with an empty one."""
    host, port = host_and_port(address)
    while True:
        store = TCPStore(host.strip("[]"), port, None, member.rank == LEADER, patience, wait_for_workers=False)
        if store.add(f"joined/{member.rank}", 1) == 1:
            return store
        # This rank was there before, in a group that has not noticed its death: that group must end first.
        store.set(FALLEN, f"rank {member.rank} has started again")
        time.sleep(BEAT_S)


def _watch_others(store: Store, spec: ProcessSpec, member: Membership) -> None:
    store.set_timeout(timedelta(seconds=LOST_AFTER_S))

    def end_process(reason: str) -> None:
        report_once(spec, Failed(peer_of(spec), f"{process_name(spec)} ends: {reason}"))
        os._exit(1)

    RankWatch(store, member.rank, member.world, end_process).start()


def plan_endpoints(store: Store, world: int) -> dict[int, str]:
    """Where each rank but rank 0 waits for plans; waits until all have said so."""
    return {rank: store.get(f"plans/{rank}").decode() for rank in range(1, world)}
