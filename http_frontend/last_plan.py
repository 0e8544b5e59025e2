"""Whom a dead scheduler was computing: the evidence that it left on the status board."""

import msgspec

from protocol.plan import PlanEvidence
from runtime.status_board import StatusBoard

_decoder = msgspec.msgpack.Decoder(PlanEvidence)


def requests_of_last_plan(board: StatusBoard, replica: int, incarnation: int) -> frozenset[str]:
    """Ids of the requests whose rows were in the last step of this incarnation of the replica; none if it made none, or
    left no plan that can be read."""
    for position in range(board.slots):
        status = board.read(position)
        if status.role == "scheduler" and status.index == replica and (plan := board.read_plan(position)):
            try:
                evidence = _decoder.decode(plan)
            except msgspec.DecodeError:
                return frozenset()
            return frozenset(evidence.requests if evidence.incarnation == incarnation else ())
    return frozenset()
