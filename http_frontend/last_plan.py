"""Whom a dead scheduler was computing: the evidence that it left on the status board."""

import msgspec

from protocol.plan import PlanEvidence
from runtime.status_board import StatusBoard

_decoder = msgspec.msgpack.Decoder(PlanEvidence)


def requests_of_last_plan(board: StatusBoard, replica: int) -> frozenset[str]:
    """Ids of the requests whose rows were in the replica's last step; none if it left no plan that can be read."""
    for position in range(board.slots):
        status = board.read(position)
        if status.role == "scheduler" and status.index == replica and (plan := board.read_plan(position)):
            try:
                return frozenset(_decoder.decode(plan).requests)
            except msgspec.DecodeError:
                return frozenset()
    return frozenset()
