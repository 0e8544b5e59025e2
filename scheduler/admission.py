"""Whether a request may come in at all."""

import math

from protocol.errors import ErrorInfo, field_error
from protocol.ids import count_ids
from protocol.requests import EngineRequest


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
            return field_error("prompt", "has no token", "empty_prompt").info
        if prompt_tokens > self._context_length:
            text = f"the prompt has {prompt_tokens} tokens, the model's context {self._context_length}"
            return field_error("prompt", text, "context_length_exceeded").info
        wanted = message.sampling.max_tokens
        total = min(self._context_length, prompt_tokens + (self._context_length if wanted is None else wanted))
        if total > self._longest_tokens and not message.probe:
            text = (
                f"prompt and answer may take {total} tokens together ({prompt_tokens} of them prompt), and this server's "
                f"memory holds {self._longest_tokens} for one request"
            )
            return field_error("max_tokens", text, "kv_pool_exceeded").info
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


def timeout_error(message: str) -> ErrorInfo:
    return ErrorInfo(message, 408, "timeout_error", code="timeout")


def queue_timeout_error() -> ErrorInfo:
    message = "the request waited for longer than its queue_timeout allows"
    return ErrorInfo(message, 503, "timeout_error", code="queue_timeout", retry_after_s=1.0)
