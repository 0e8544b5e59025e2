"""How often a dead process may come back, and after what pause."""

from collections import deque

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class RestartBudget:
    """Counts all restarts within a sliding window. The first restart of a group comes at once, each further one within
    the window after twice the pause of the one before."""

    def __init__(self, max_restarts: int, window_s: float) -> None:
        self.max_restarts = max_restarts
        self.window_s = window_s
        self._restarts: deque[tuple[float, str]] = deque()

    def spend(self, group: str, now_s: float) -> float | None:
        """Seconds to wait before this restart, or None if there were too many."""
        while self._restarts and now_s - self._restarts[0][0] > self.window_s:
            self._restarts.popleft()
        if len(self._restarts) >= self.max_restarts:
            return None
        former = sum(1 for _, restarted in self._restarts if restarted == group)
        self._restarts.append((now_s, group))
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (former - 1)) if former else 0.0
