"""What an abort ends, and what stays ended: an abort may overtake its request, and a request may come twice."""

from collections import OrderedDict

from protocol.links import is_named, request_owner
from protocol.requests import AbortRequest

REMEMBERED = 16_384
"""Ended and aborted request ids that are remembered, so that a late copy of one does nothing."""


class Tombstones:
    """The newest `capacity` request ids that are over, each with its highest attempt."""

    def __init__(self, capacity: int = REMEMBERED) -> None:
        self._capacity = capacity
        self._attempts: OrderedDict[str, int] = OrderedDict()
        self._workers: dict[int | None, float] = {}

    def bury(self, request_id: str, attempt: int) -> None:
        """Attempts of this request up to that number are over."""
        self._attempts[request_id] = max(attempt, self._attempts.pop(request_id, -1))
        if len(self._attempts) > self._capacity:
            self._attempts.popitem(last=False)

    def bury_worker(self, worker: int | None, now: float) -> None:
        """Everything that came to this HTTP worker (None: to any) before now is over."""
        self._workers[worker] = now

    def covers(self, request_id: str, attempt: int, arrival_s: float = 0.0) -> bool:
        """Whether the attempt is over; one without an arrival is not asked when its worker was buried."""
        if attempt <= self._attempts.get(request_id, -1):
            return True
        if not self._workers or not arrival_s:
            return False
        buried_s = max(self._workers.get(None, 0.0), self._workers.get(owner_of(request_id), 0.0))
        return arrival_s <= buried_s


def aborts(abort: AbortRequest, request_id: str, attempt: int) -> bool:
    """Whether the abort means this attempt of this request."""
    if abort.request_id:
        return abort.request_id == request_id and attempt <= abort.attempt
    if abort.client_id:
        return is_named(request_id, abort.client_id)
    if abort.all_of_worker is not None:
        return abort.all_of_worker == owner_of(request_id)
    return abort.abort_all


def owner_of(request_id: str) -> int | None:
    """The index of the HTTP worker that owns the request, None for an id that is not one of ours."""
    try:
        return request_owner(request_id)
    except ValueError:
        return None
