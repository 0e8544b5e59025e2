"""Control questions: cache flush, state and loads, pause and resume, log level. Each gets one answer, some of them later."""

import logging
from collections.abc import Callable
from typing import Any

from protocol.control import ControlReply, ControlRequest
from protocol.requests import PeekCache
from runtime.tombstones import owner_of
from scheduler.scheduler import Scheduler

Reply = Callable[[ControlReply, int | None], None]
"""Sends a reply by way of this detokenizer, or of any."""


class ControlDesk:
    """Answers for one scheduler, whose index among the replicas is `index`."""

    def __init__(self, scheduler: Scheduler, index: int, reply: Reply) -> None:
        self._scheduler = scheduler
        self._index = index
        self._reply = reply
        self._waiting_flushes: list[tuple[float, ControlRequest]] = []

    def handle(self, request: ControlRequest, now: float) -> None:
        if request.replica is not None and request.replica != self._index:
            return
        match request.what:
            case "flush_cache":
                self._flush(request, now)
            case "state":
                self._answer(request, payload=self.state(bool(request.arguments.get("check"))))
            case "loads":
                self._answer(request, payload=self.loads())
            case "pause" | "resume":
                self._scheduler.paused = request.what == "pause"
                self._answer(request)
            case "set_log_level":
                self._set_log_level(request)

    def peek(self, request: PeekCache) -> None:
        cached = self._scheduler.cached_tokens(request.namespace, request.prompt_ids)
        worker = owner_of(request.correlation_id) or 0
        reply = ControlReply(
            request.correlation_id, worker, "scheduler", self._index, payload={"cached_tokens": cached}
        )
        self._reply(reply, request.detokenizer)

    def poll(self, now: float) -> None:
        """Flushes that wait for the scheduler to be idle, and those that have waited for too long."""
        still_waiting = []
        for deadline_s, request in self._waiting_flushes:
            if self._idle:
                self._flush_now(request)
            elif now >= deadline_s:
                self._answer(request, ok=False, message="requests were still running when the time was over")
            else:
                still_waiting.append((deadline_s, request))
        self._waiting_flushes = still_waiting

    @property
    def waiting(self) -> bool:
        return bool(self._waiting_flushes)

    def loads(self) -> dict[str, Any]:
        scheduler = self._scheduler
        return {
            "waiting_requests": scheduler.waiting_requests,
            "waiting_choices": len(scheduler.queue),
            "running_choices": len(scheduler.planner.running),
            "free_pages": scheduler.memory.available(probe=True),
            "total_pages": scheduler.memory.pool.usable,
            "cached_pages": scheduler.memory.cache.pages,
        }

    def state(self, check: bool) -> dict[str, Any]:
        """What /server_info shows; `check` also goes through the page books."""
        scheduler = self._scheduler
        problems = scheduler.check_books() if check else None
        return {
            **self.loads(),
            "page_size": scheduler.memory.page_size,
            "evictable_pages": scheduler.memory.cache.evictable,
            "steps": scheduler.planner.step,
            "generated_tokens": scheduler.results.generated_tokens,
            "retractions": scheduler.planner.retractions,
            "drafted_tokens": scheduler.planner.speculation.drafted_tokens,
            "accepted_draft_tokens": scheduler.planner.speculation.accepted_tokens,
            "growth_ratio": scheduler.planner.reserve.ratio,
            "books_repaired": scheduler.books_repaired,
            "paused": scheduler.paused,
            "grammar": scheduler.constraints.statistics(),
            "model_runner": scheduler.executor.statistics(),
            "kernels": scheduler.executor.capacity.kernels,
            **({"check": problems or "every page has one owner"} if check else {}),
        }

    @property
    def _idle(self) -> bool:
        return not self._scheduler.requests and not self._scheduler.steps_in_flight

    def _flush(self, request: ControlRequest, now: float) -> None:
        mode = request.arguments.get("mode", "idle")
        if mode == "unlocked" or self._idle:
            self._flush_now(request)
        elif mode == "deferred":
            self._waiting_flushes.append((now + float(request.arguments.get("timeout_s", 60.0)), request))
        else:
            self._answer(request, ok=False, message="requests are running or waiting: the cache was not flushed")

    def _flush_now(self, request: ControlRequest) -> None:
        self._answer(request, payload={"flushed_pages": self._scheduler.memory.flush()})

    def _set_log_level(self, request: ControlRequest) -> None:
        level = str(request.arguments.get("level", "")).upper()
        if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            self._answer(request, ok=False, message=f"no such log level: {level.lower()}")
            return
        logging.getLogger().setLevel(level)
        self._answer(request)

    def _answer(
        self, request: ControlRequest, *, ok: bool = True, message: str = "", payload: dict[str, Any] | None = None
    ) -> None:
        reply = ControlReply(
            request.correlation_id, request.worker, "scheduler", self._index, ok, message, payload if payload else {}
        )
        self._reply(reply, None)
