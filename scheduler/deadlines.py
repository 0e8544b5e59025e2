"""When requests have to be over, or out of the queue."""

import heapq
from collections.abc import Callable
from itertools import count

from scheduler.sequence import Request

_FEW = 256


class Deadlines:
    """A heap of moments. One whose request has ended meanwhile is dropped by whoever asks, or with the others when they
    may be half of the heap: deadlines lie up to a day ahead, and each holds its request."""

    def __init__(self, lives: Callable[[Request], bool]) -> None:
        self._lives = lives
        self._heap: list[tuple[float, int, Request, bool]] = []
        self._tie = count()
        self._most = _FEW

    def add(self, request: Request) -> None:
        message = request.message
        if message.deadline_s is not None:
            heapq.heappush(self._heap, (message.deadline_s, next(self._tie), request, False))
        if message.queue_timeout_s is not None and not request.resumed:
            moment_s = message.arrival_s + message.queue_timeout_s
            heapq.heappush(self._heap, (moment_s, next(self._tie), request, True))
        if len(self._heap) > self._most:
            self._heap = [entry for entry in self._heap if self._lives(entry[2])]
            heapq.heapify(self._heap)
            self._most = max(_FEW, 2 * len(self._heap))

    def __len__(self) -> int:
        return len(self._heap)

    def next_s(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def passed(self, now: float) -> list[tuple[Request, bool]]:
        """Requests whose moment has come, and whether it is the end of their time in the queue."""
        passed = []
        while self._heap and self._heap[0][0] <= now:
            _, _, request, in_queue = heapq.heappop(self._heap)
            passed.append((request, in_queue))
        return passed
