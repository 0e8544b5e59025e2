"""The threads that fill masks while the forward pass runs. xgrammar gives up the interpreter lock while it works."""

import math
import threading
import time
from collections import deque
from collections.abc import Sequence

from scheduler.grammar.state import LONGEST_FILL_S, XGrammarState

_MAX_EXTRA_THREADS = 16


class MaskFiller:
    """States wait in one line and are taken singly: a slow one holds up a thread, and no other state."""

    def __init__(self, threads: int) -> None:
        self.fills = 0
        self._line: deque[XGrammarState] = deque()
        self._change = threading.Condition()
        self._working: dict[threading.Thread, float] = {}  # since when
        self._wanted_threads = threads
        self._threads: list[threading.Thread] = []
        self._closed = False
        for _ in range(threads):
            self._add_thread()

    def request(self, states: Sequence[XGrammarState]) -> None:
        """Puts those in line whose mask is neither current nor under way."""
        now = time.monotonic()
        wanted = [
            state for state in states if not state.mask_is_current and not state.filling and state.failure is None
        ]
        if not wanted:
            return
        with self._change:
            for state in wanted:
                if not state.filling:
                    state.filling = True
                    state.filling_since = math.inf
                    self._line.append(state)
            self._replace_stuck_threads(now)
            self._change.notify_all()

    def wait(self, states: Sequence[XGrammarState], timeout_s: float) -> None:
        """Until none of these is under way, or the time is over."""
        deadline = time.monotonic() + timeout_s
        with self._change:
            while any(state.filling for state in states):
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._change.wait(remaining):
                    break
        now = time.monotonic()
        for state in states:
            state.check_time(now)

    def close(self) -> None:
        """Threads that are stuck in a mask are daemons and end with the process."""
        with self._change:
            self._closed = True
            self._line.clear()
            self._change.notify_all()
            stuck = set(self._working)
        for thread in self._threads:
            if thread not in stuck:
                thread.join()

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="grammar masks", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _replace_stuck_threads(self, now: float) -> None:
        stuck = sum(now - since > LONGEST_FILL_S for since in self._working.values())
        if len(self._threads) - stuck < self._wanted_threads and stuck <= _MAX_EXTRA_THREADS:
            self._add_thread()

    def _run(self) -> None:
        own = threading.current_thread()
        while True:
            with self._change:
                self._working.pop(own, None)
                while not self._line and not self._closed:
                    self._change.wait()
                if self._closed:
                    return
                state = self._line.popleft()
                self._working[own] = state.filling_since = time.monotonic()
            state.fill()
            with self._change:
                self.fills += 1
                state.filling = False
                if not self._line:
                    self._change.notify_all()
