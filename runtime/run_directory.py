"""The private directory of one running server: sockets, start files, board, stacks. Gone when the server is.

A server that was killed leaves its directory; the next one finds its lock free and removes it.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from runtime.start_error import StartError

_PREFIX = "candor-"
_LOCK = "lock"
# A unix socket's path holds 107 bytes; /candor-xxxxxxxx/detokenizer-00-00000.control takes about 45 of them.
_LONGEST_PARENT = 60


class RunDirectory:
    """Mode 0700, locked by this process for as long as it lives."""

    def __init__(self, parent: Path | None = None) -> None:
        if parent is None:
            parent = Path(tempfile.gettempdir())
            if len(os.fsencode(parent)) > _LONGEST_PARENT:
                parent = Path("/tmp")
        elif len(os.fsencode(parent)) > _LONGEST_PARENT:
            raise StartError(
                f"CANDOR_RUN_FOLDER {parent} is too long for unix sockets: {_LONGEST_PARENT} bytes at most"
            )
        _remove_stale(parent)
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        except OSError as error:
            raise StartError(f"no private run directory can be made in {parent}: {error}") from None
        # Locked before it has its name: a server that starts at this moment would take a free lock for a dead server's.
        unnamed = self.path / f"{_LOCK}.new"
        self._lock = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / _LOCK)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_stale(parent: Path) -> None:
    """Removes directories of servers of this user that live no more."""
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            if lock.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            shutil.rmtree(lock.parent, ignore_errors=True)
        finally:
            os.close(descriptor)
