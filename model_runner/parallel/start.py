"""Builds what a scheduler drives: a runner alone, or rank 0 of several with its links to the others."""

from collections.abc import Callable

from model_runner.parallel.leader import LeadingExecutor
from model_runner.parallel.membership import join_replica, membership_of, plan_endpoints, take_device
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
    if member.world == 1:
        take_device(config, member)
        return ModelRunner(config, on_progress)
    group, store = join_replica(config, spec, spec.endpoint)
    indices = []
    for rank, endpoint in plan_endpoints(store, member.world).items():
        indices.append(member.replica * member.world + rank)
        outbox.peer_up(Peer("rank", indices[-1], spec.incarnation, endpoint))

    def send_to_all(frame: bytes) -> None:
        for index in indices:
            outbox.send_frame("rank", index, frame)

    return LeadingExecutor(ModelRunner(config, on_progress, group=group), send_to_all)
