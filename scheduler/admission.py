"""Whether a request may come in at all, and what to do with messages that overtake each other."""

import math
from collections import OrderedDict

from protocol.errors import ErrorInfo
from protocol.ids import count_ids
from protocol.links import is_named, request_owner
from protocol.requests import AbortRequest, EngineRequest

REMEMBERED = 16_384
"""Ended and aborted request ids that are remembered, so that a late copy of one does nothing."""


class Admission:
    """Refuses what can never run, or not now; nothing else in the server may refuse for lack of room."""

    def __init__(self, *, longest_tokens: int, context_length: int, max_queued: int) -> None:
        self._longest_tokens = longest_tokens
        self._context_length = context_length
        self._max_queued = max_queued
        self.draining = False
        self._ended_per_s = 0.0
        self._last_end = 0.0

    def refusal(self, message: EngineRequest, now: float) -> ErrorInfo | None:
        """Why the request can't be taken whatever the load, or because its time is over or the server's is."""
        prompt_tokens = count_ids(message.prompt_ids)
        if self.draining and not message.attempt:
            return ErrorInfo(
                "the server is shutting down", 503, "service_unavailable_error", code="draining", retry_after_s=5.0
            )
        if message.deadline_s is not None and now >= message.deadline_s:
            return timeout_error("the request's deadline passed before it began")
        if prompt_tokens == 0:
            return ErrorInfo("the prompt is empty", param="prompt")
        if prompt_tokens > self._context_length:
            text = f"the prompt has {prompt_tokens} tokens, the model's context {self._context_length}"
            return ErrorInfo(text, param="prompt", code="context_length_exceeded")
        wanted = message.sampling.max_tokens
        total = min(self._context_length, prompt_tokens + (self._context_length if wanted is None else wanted))
        if total > self._longest_tokens and not message.probe:
            text = (
                f"prompt and answer may take {total} tokens together ({prompt_tokens} of them prompt), and this server's "
                f"memory holds {self._longest_tokens} for one request"
            )
            return ErrorInfo(text, param="max_tokens", code="kv_pool_exceeded")
        return None

    def is_full(self, waiting_requests: int) -> bool:
        return waiting_requests >= self._max_queued

    def overloaded(self, waiting_requests: int) -> ErrorInfo:
        """The 503 of a full queue; its Retry-After is how long the queue takes to pass at the pace seen lately."""
        seconds = waiting_requests / self._ended_per_s if self._ended_per_s else 1.0
        return ErrorInfo(
            f"{waiting_requests} requests are waiting already",
            503,
            "service_unavailable_error",
            code="queue_full",
            retry_after_s=float(math.ceil(min(60.0, max(1.0, seconds)))),
        )

    def request_ended(self, now: float) -> None:
        """Keeps the pace: requests that end per second, averaged over the last few dozen."""
        if self._last_end and now > self._last_end:
            self._ended_per_s += 0.05 * (min(1000.0, 1.0 / (now - self._last_end)) - self._ended_per_s)
        self._last_end = now


class Tombstones:
    """Attempts that are over, so that a request which arrives after its own abort, or twice, is not run."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[str, int] = OrderedDict()
        self._workers: dict[int | None, float] = {}

    def bury(self, request_id: str, attempt: int) -> None:
        """Attempts of this request up to that number are over."""
        self._attempts[request_id] = max(attempt, self._attempts.pop(request_id, -1))
        if len(self._attempts) > REMEMBERED:
            self._attempts.popitem(last=False)

    def bury_worker(self, worker: int | None, now: float) -> None:
        """Everything that came to this HTTP worker (None: to any) before now is over."""
        self._workers[worker] = now

    def covers(self, message: EngineRequest) -> bool:
        if message.attempt <= self._attempts.get(message.request_id, -1):
            return True
        if not self._workers or not message.arrival_s:
            return False
        buried_s = max(self._workers.get(None, 0.0), self._workers.get(owner_of(message.request_id), 0.0))
        return message.arrival_s <= buried_s


def aborts(message: AbortRequest, request_id: str, attempt: int) -> bool:
    """Whether the abort means this attempt of this request."""
    if message.request_id:
        return message.request_id == request_id and attempt <= message.attempt
    if message.client_id:
        return is_named(request_id, message.client_id)
    return message.all_of_worker is None or message.all_of_worker == owner_of(request_id)


def owner_of(request_id: str) -> int | None:
    try:
        return request_owner(request_id)
    except ValueError:
        return None


def timeout_error(message: str) -> ErrorInfo:
    return ErrorInfo(message, 504, "timeout_error", code="deadline_exceeded")


def queue_timeout_error() -> ErrorInfo:
    message = "the request waited for longer than its queue_timeout allows"
    return ErrorInfo(message, 503, "timeout_error", code="queue_timeout", retry_after_s=1.0)
