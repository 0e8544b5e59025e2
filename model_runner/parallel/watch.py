"""Between hosts nobody tells who has died: ranks watch each other's beats in the store they met at."""

import threading
from collections.abc import Callable

from torch._C._distributed_c10d import Store

BEAT_S = 1.0
LOST_AFTER_S = 20.0
"""Longer than a thread of this process may wait for the interpreter, shorter than a client's patience."""

FALLEN = "fallen"


class RankWatch(threading.Thread):
    """Calls `on_lost(reason)` once, from its own thread, when another rank is gone or says that the group has fallen.

    It needs a store of its own: a blocking wait in a shared one would hold its beats up.
    """

    def __init__(self, store: Store, rank: int, world: int, on_lost: Callable[[str], None]) -> None:
        super().__init__(name="rank-watch", daemon=True)
        self._store = store
        self._rank = rank
        self._others = [other for other in range(world) if other != rank]
        self._on_lost = on_lost
        self._seen = dict.fromkeys(self._others, -1)
        self._silent_turns = dict.fromkeys(self._others, 0)
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            reason = self.look()
            if reason is not None:
                if not self._stopped.is_set():
                    self._on_lost(reason)
                return
            self._stopped.wait(BEAT_S)

    def look(self) -> str | None:
        """Beats once; says who is lost, if anybody is."""
        try:
            self._store.add(f"beat/{self._rank}", 1)
            if self._store.check([FALLEN]):
                return self._store.get(FALLEN).decode()
            beats = {other: self._store.add(f"beat/{other}", 0) for other in self._others}
        except RuntimeError as error:
            return f"rank 0 can't be reached any more ({error})"
        for other, beat in beats.items():
            moved = beat != self._seen[other] or beat == 0  # 0: it has not begun to beat
            self._seen[other] = beat
            self._silent_turns[other] = 0 if moved else self._silent_turns[other] + 1
            if self._silent_turns[other] * BEAT_S >= LOST_AFTER_S:
                return f"rank {other} has not been heard of for {LOST_AFTER_S:g} s"
        return None

    def stop(self) -> None:
        self._stopped.set()
