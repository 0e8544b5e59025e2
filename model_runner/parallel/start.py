"""Builds what a scheduler drives: a runner alone, or rank 0 of several with its links to the others."""

from collections.abc import Callable

from model_runner.parallel.group import open_group
from model_runner.parallel.leader import LeadingExecutor
from model_runner.parallel.membership import (
    SLOWEST_STEP_S,
    membership_of,
    open_store,
    plan_endpoints,
    take_device,
)
from model_runner.runner import ModelRunner
from protocol.control import Peer
from protocol.plan import Executor
from runtime.channels import Outbox
from runtime.engine_config import EngineConfig, ProcessSpec


def start_executor(
    config: EngineConfig, spec: ProcessSpec, outbox: Outbox, on_progress: Callable[[str, int, int], None]
) -> Executor:
    """The executor of this replica, with its weights loaded on every rank."""
    member = membership_of(config, spec)
    device = take_device(config, member)
    if member.world == 1:
        return ModelRunner(config, on_progress)
    store = open_store(config, spec, member)
    group = open_group(store, member.rank, member.world, device, SLOWEST_STEP_S, one_host=True)
    indices = []
    for rank, endpoint in plan_endpoints(store, member.world).items():
        indices.append(member.replica * member.world + rank)
        outbox.peer_up(Peer("rank", indices[-1], spec.incarnation, endpoint))

    def send_to_all(frame: bytes) -> None:
        for index in indices:
            outbox.send_frame("rank", index, frame)

    return LeadingExecutor(ModelRunner(config, on_progress, group=group), send_to_all)
