"""Requests that were aborted: remembered for a while, so that an abort which overtakes its request still ends it."""

from collections import OrderedDict

from protocol.links import is_named, request_owner
from protocol.requests import AbortRequest


class Tombstones:
    """The newest `capacity` aborts by request id, each with the highest attempt that it ends."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._attempts: OrderedDict[str, int] = OrderedDict()

    def add(self, abort: AbortRequest) -> None:
        if abort.request_id:
            self._attempts[abort.request_id] = max(abort.attempt, self._attempts.get(abort.request_id, -1))
            self._attempts.move_to_end(abort.request_id)
            if len(self._attempts) > self._capacity:
                self._attempts.popitem(last=False)

    def ends(self, request_id: str, attempt: int) -> bool:
        return attempt <= self._attempts.get(request_id, -1)


def concerns(abort: AbortRequest, request_id: str, attempt: int) -> bool:
    """Whether the abort ends this attempt of a request that is here."""
    if abort.request_id:
        return request_id == abort.request_id and attempt <= abort.attempt
    if abort.client_id:
        return is_named(request_id, abort.client_id)
    if abort.all_of_worker is not None:
        return request_owner(request_id) == abort.all_of_worker
    return abort.abort_all
