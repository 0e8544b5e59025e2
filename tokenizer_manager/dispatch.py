"""Admitted requests on their way to a scheduler: the choice of replica and detokenizer, and a bounded wait for them."""

import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from protocol.control import Role
from protocol.errors import LOST, RequestError
from protocol.requests import AbortRequest, EngineRequest
from runtime.tombstones import aborts
from tokenizer_manager.routing import Router

HOLD_S = 60.0
_REMEMBERED = 10_000


class Sender(Protocol):
    """The part of `runtime.channels.Outbox` that is used here."""

    def peers(self, role: Role) -> list[int]: ...

    def send(self, role: Role, index: int, message: msgspec.Struct) -> bool: ...


@dataclass(frozen=True)
class _Held:
    request: EngineRequest
    forced: int | None
    until_s: float


@dataclass(frozen=True)
class _Sent:
    replica: int
    attempt: int
    at_s: float


Unavailable = Literal["queue_full", "queue_timeout", "unavailable"]
Refuse = Callable[[str, int, RequestError], Any]


class Dispatcher:
    """Sends requests on. While no replica (or no detokenizer) lives they are held: a restart is a pause, not an error.

    Held are at most `limit` requests, each no longer than its queue time-out.
    """

    def __init__(
        self, outbox: Sender, router: Router, refuse: Refuse, *, limit: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._outbox = outbox
        self._router = router
        self._refuse = refuse
        self._limit = limit
        self._clock = clock
        self._held: dict[str, _Held] = {}
        # Where a request went: its next attempt goes there too if it can, to supersede the old one in place.
        self._sent_to: OrderedDict[str, _Sent] = OrderedDict()

    @property
    def held(self) -> int:
        return len(self._held)

    def send(self, request: EngineRequest, forced: int | None) -> None:
        """Sends the request to a replica, holds it, or refuses it (RequestError 503)."""
        former = self._held.get(request.request_id)
        if former is not None and former.request.attempt > request.attempt:
            return
        self._held.pop(request.request_id, None)
        if self._try(request, forced):
            return
        if len(self._held) >= self._limit and not request.probe:
            raise unavailable("no replica of the model is up, and the queue is full", "queue_full")
        wait_s = HOLD_S if request.queue_timeout_s is None else request.queue_timeout_s
        self._held[request.request_id] = _Held(request, forced, self._clock() + wait_s)

    def retry(self) -> None:
        """Somebody came up: sends what was held, oldest first."""
        for request_id, held in list(self._held.items()):
            if self._try(held.request, held.forced):
                del self._held[request_id]

    def replica_died(self, replica: int, at_s: float) -> None:
        """What was sent to it since its death is lost, and its owners can't know: they are told to submit it again. What
        was sent before, they submit again by themselves."""
        for request_id, sent in list(self._sent_to.items()):
            if sent.replica == replica:
                del self._sent_to[request_id]
                if sent.at_s >= at_s:
                    error = RequestError("the replica died", status=503, type="service_unavailable_error", code=LOST)
                    self._refuse(request_id, sent.attempt, error)

    def expire(self) -> None:
        """Refuses what has waited too long."""
        now = self._clock()
        for request_id, held in list(self._held.items()):
            if held.until_s <= now:
                del self._held[request_id]
                code: Unavailable = "unavailable" if held.request.queue_timeout_s is None else "queue_timeout"
                error = unavailable("no replica of the model came up in time", code)
                self._refuse(request_id, held.request.attempt, error)

    def abort(self, abort: AbortRequest) -> list[tuple[str, int]]:
        """Drops held requests that the abort concerns and names them."""
        ended = [
            (request_id, held.request.attempt)
            for request_id, held in self._held.items()
            if aborts(abort, request_id, held.request.attempt)
        ]
        for request_id, _ in ended:
            del self._held[request_id]
        return ended

    def _try(self, request: EngineRequest, forced: int | None) -> bool:
        detokenizers = self._outbox.peers("detokenizer")
        if not detokenizers:
            return False
        if forced is None and request.attempt > 0:
            former = self._sent_to.get(request.request_id)
            if former is not None and former.replica in self._router.live:
                forced = former.replica
        replica = self._router.choose(request.prompt_ids, request.namespace, forced)
        if replica is None:
            return False
        self._remember(request, replica)
        if request.attempt > 0:
            # A tokenizer manager that died may have sent an older attempt elsewhere, where nothing would end it.
            older = AbortRequest(request.request_id, request.attempt - 1)
            for other in self._router.live:
                if other != replica:
                    self._outbox.send("scheduler", other, older)
        detokenizer = detokenizers[zlib.crc32(request.request_id.encode()) % len(detokenizers)]
        return self._outbox.send("scheduler", replica, msgspec.structs.replace(request, detokenizer=detokenizer))

    def _remember(self, request: EngineRequest, replica: int) -> None:
        self._sent_to[request.request_id] = _Sent(replica, request.attempt, time.time())
        self._sent_to.move_to_end(request.request_id)
        if len(self._sent_to) > _REMEMBERED:
            self._sent_to.popitem(last=False)


def unavailable(message: str, code: Unavailable, retry_after_s: float = 5.0) -> RequestError:
    """The 503 that only asks for patience."""
    return RequestError(message, status=503, type="service_unavailable_error", code=code, retry_after_s=retry_after_s)
