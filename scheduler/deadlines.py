"""When requests have to be over, or out of the queue."""

import heapq
from itertools import count

from scheduler.sequence import Request


class Deadlines:
    """A heap of moments. One whose request has ended meanwhile is dropped by whoever asks."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request, bool]] = []
        self._tie = count()

    def add(self, request: Request) -> None:
        message = request.message
        if message.deadline_s is not None:
            heapq.heappush(self._heap, (message.deadline_s, next(self._tie), request, False))
        if message.queue_timeout_s is not None and not request.resumed:
            moment_s = message.arrival_s + message.queue_timeout_s
            heapq.heappush(self._heap, (moment_s, next(self._tie), request, True))

    def next_s(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def passed(self, now: float) -> list[tuple[Request, bool]]:
        """Requests whose moment has come, and whether it is the end of their time in the queue."""
        passed = []
        while self._heap and self._heap[0][0] <= now:
            _, _, request, in_queue = heapq.heappop(self._heap)
            passed.append((request, in_queue))
        return passed
