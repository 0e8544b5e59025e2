"""A real server as a user starts it, seen from outside: its output, its address, its processes."""

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0


class Server:
    """`launch.py` in a session of its own (so that whatever it leaves behind can be found), on a port of its choosing."""

    def __init__(self, folder: Path, *flags: str, script: Path = ROOT / "launch.py") -> None:
        self._output = folder / "output"
        self._errors = folder / "errors"
        # A path of its own for the run directory, and a short one: sockets in it have 107 bytes.
        self.runs = Path(tempfile.mkdtemp(prefix="c"))
        environment = os.environ | {"CANDOR_RUN_FOLDER": str(self.runs)}
        command = [sys.executable, str(script), *(flags if "--port" in flags else ("--port", "0", *flags))]
        with self._output.open("w") as output, self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                cwd=folder,
                # Where the tests run in the background of a shell, SIGINT is ignored, and that would be inherited.
                preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            )
        self.url = ""
        self.http = httpx.Client(timeout=PATIENCE_S)

    def output(self) -> str:
        return self._output.read_text()

    def errors(self) -> str:
        return self._errors.read_text()

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """Polls a condition that must come true; the time limit only ends a failing test."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            if found := condition():
                return found
            time.sleep(0.02)
        raise AssertionError(f"never: {what}\n{self.output()}\n{self.errors()}")

    def wait_ready(self) -> "Server":
        self.wait_for(lambda: "curl http" in self.output() or self.process.poll() is not None, "ready")
        found = re.search(r"Candor is ready: .* at (http\S+)", self.output())
        assert found is not None, self.errors()
        self.url = found.group(1)
        self.http.base_url = httpx.URL(self.url)
        return self

    def wait_end(self) -> int:
        return self.process.wait(PATIENCE_S)

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def state(self) -> dict[str, Any]:
        """/server_info, the page books checked."""
        found: dict[str, Any] = self.http.get("/server_info", params={"check": "1"}).json()
        return found

    def wait_idle(self) -> dict[str, Any]:
        """The scheduler's state once nothing runs: every row and every page that is not the prefix cache's is free."""

        def idle() -> dict[str, Any] | None:
            (scheduler,) = self.state()["internal_states"]
            busy = scheduler["running_choices"] + scheduler["waiting_choices"] + scheduler["waiting_requests"]
            return None if busy else scheduler

        found: dict[str, Any] = self.wait_for(idle, "idle")
        return found

    def pids(self) -> dict[str, int]:
        """Process id by name (`scheduler 0`), as the status board has it."""
        return {f"{entry['role']} {entry['index']}": entry["pid"] for entry in self.state()["processes"]}

    def alive(self) -> bool:
        """Whether any process of the server's session lives."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        """For good and all; a server that a test has ended already is fine, too."""
        self.http.close()
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.runs, ignore_errors=True)


@contextlib.contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Server]:
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(folder, *flags)
    try:
        yield server
    finally:
        server.close()
