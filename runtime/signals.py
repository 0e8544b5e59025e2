"""Signals as data: a file descriptor that becomes readable, and the numbers that came."""

import signal
import socket
from types import FrameType, TracebackType

_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


class Signals:
    """While it is entered, watched signals only make `fd` readable. One that was ignored (nohup) stays ignored."""

    def __enter__(self) -> "Signals":
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._former_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._former = {
            number: signal.signal(number, _nothing)
            for number in _WATCHED
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_fd)
        self._reader.close()
        self._writer.close()

    @property
    def fd(self) -> int:
        return self._reader.fileno()

    def take(self) -> list[int]:
        """Numbers of the signals since the last call; never waits."""
        try:
            return list(self._reader.recv(4096))
        except BlockingIOError:
            return []


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler must exist for the wake-up descriptor to be written."""
