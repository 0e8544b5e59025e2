"""Answers to HTTP workers, kept for a moment where a worker's request has come sooner than the news that it is up."""

import time
from collections import deque
from collections.abc import Callable

import msgspec

from tokenizer_manager.dispatch import Sender

KEPT_S = 5.0
_KEPT_ANSWERS = 1000


class Answers:
    """Sends, or keeps: requests and the supervisor's news travel on different links, in no common order."""

    def __init__(self, outbox: Sender, clock: Callable[[], float] = time.monotonic) -> None:
        self._outbox = outbox
        self._clock = clock
        self._kept: deque[tuple[float, int, msgspec.Struct]] = deque(maxlen=_KEPT_ANSWERS)

    def send(self, worker: int, message: msgspec.Struct) -> None:
        if not self._outbox.send("http", worker, message):
            self._kept.append((self._clock() + KEPT_S, worker, message))

    def peer_up(self, worker: int) -> None:
        """The worker can be written to: it gets what was kept for it."""
        kept = list(self._kept)
        self._kept.clear()
        for until_s, known, message in kept:
            if known != worker:
                self._kept.append((until_s, known, message))
            else:
                self._outbox.send("http", worker, message)

    def expire(self) -> None:
        """Forgets answers to workers that did not come: they are gone, and so are their clients."""
        now = self._clock()
        while self._kept and self._kept[0][0] <= now:
            self._kept.popleft()
