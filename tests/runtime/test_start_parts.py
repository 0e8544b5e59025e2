"""Small parts of a start: environment, log lines, the listening socket, the run directory, restarts, announcements."""

import fcntl
import io
import json
import logging
import os
import shlex
import socket
import tempfile
from pathlib import Path

import pytest

from runtime.announcements import Announcer
from runtime.environment import child_environment, read_environment
from runtime.listening import open_listener
from runtime.logging_setup import LineFormatter
from runtime.restarts import RestartBudget
from runtime.run_directory import RunDirectory
from runtime.server_args import ServerArgs
from runtime.start_error import StartError
from tests.samples import make_config


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMP_NUM_THREADS", "many"), ("OMP_NUM_THREADS", "0"), ("CANDOR_CACHE", " "), ("CANDOR_SUPERVISOR_PID", "-3")],
)
def test_a_variable_that_does_not_parse_stops_the_start(name: str, value: str) -> None:
    with pytest.raises(StartError, match=name):
        read_environment({name: value})


def test_variables_are_typed() -> None:
    environment = read_environment({"OMP_NUM_THREADS": "3", "CANDOR_CACHE": "/c"})
    assert (environment.omp_threads, environment.cache_folder) == (3, Path("/c"))
    assert read_environment({}).cache_folder.is_absolute()


def test_a_child_finds_our_packages_first_and_what_its_parent_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert child_environment(A="1")["PYTHONPATH"].split(os.pathsep) == [root, "/elsewhere"]
    monkeypatch.delenv("PYTHONPATH")
    assert child_environment(A="1") == os.environ | {"PYTHONPATH": root, "A": "1"}


@pytest.mark.parametrize("forged", ["a\nERROR fake", "a\r\nb", "\x1b[31mred", "a\u2028b", "nul\x00", "\x85"])
def test_a_message_is_one_line_whatever_is_in_it(forged: str) -> None:
    record = logging.LogRecord("n", logging.INFO, "f", 1, "from a client: %s", (forged,), None)
    line = LineFormatter("%(levelname)s %(message)s").format(record)
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line and "\x00" not in line


def test_the_listening_socket_is_ours_at_once() -> None:
    listener = open_listener(ServerArgs(port=0))
    try:
        assert listener.url == f"http://127.0.0.1:{listener.port}"
        with pytest.raises(StartError, match=f"port {listener.port} on 127.0.0.1 is in use"):
            open_listener(ServerArgs(port=listener.port))
        socket.create_connection(("127.0.0.1", listener.port), timeout=5).close()
    finally:
        listener.close()
    open_listener(ServerArgs(port=listener.port)).close()


def test_a_host_that_is_not_ours() -> None:
    with pytest.raises(StartError, match=r"can't listen on 192\.0\.2\.1"):
        open_listener(ServerArgs(host="192.0.2.1", port=0))


def test_a_unix_socket_left_behind_is_replaced_a_living_one_is_not(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        args = ServerArgs(uds=f"{folder}/s")
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(f"{folder}/s")
        listener = open_listener(args)
        with pytest.raises(StartError, match="is in use"):
            open_listener(args)
        listener.close()
        assert not Path(f"{folder}/s").exists()


def test_run_directories_of_living_servers_stay() -> None:
    with tempfile.TemporaryDirectory() as parent:
        first = RunDirectory(Path(parent))
        second = RunDirectory(Path(parent))
        assert {first.path, second.path} == set(Path(parent).iterdir())
        assert first.path.stat().st_mode & 0o777 == 0o700
        first.close()
        second.close()
        assert list(Path(parent).iterdir()) == []


def test_a_run_directory_is_locked_before_its_lock_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as parent:
        lock = fcntl.flock
        named: list[Path] = []

        def watched(descriptor: int, operation: int) -> None:
            named.extend(Path(parent).glob("candor-*/lock"))
            lock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", watched)
        directory = RunDirectory(Path(parent))
        assert named == []
        assert list(Path(parent).glob("candor-*/lock")) == [directory.path / "lock"]
        directory.close()


def test_a_run_folder_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="too long"):
        RunDirectory(tmp_path / ("x" * 100))


def test_restarts_back_off_and_end() -> None:
    budget = RestartBudget(4, 100)
    assert [budget.spend("a", 0), budget.spend("a", 1), budget.spend("a", 2)] == [0.0, 0.5, 1.0]
    assert budget.spend("b", 3) == 0.0
    assert budget.spend("b", 4) is None
    assert budget.spend("b", 100.5) == 0.5  # the first of "a" is out of the window, that of "b" is not
    assert RestartBudget(0, 100).spend("a", 0) is None
    many = RestartBudget(100, 1000)
    assert max(many.spend("a", 0) or 0 for _ in range(50)) == 30.0


def test_the_last_lines_of_a_start_can_be_pasted_into_a_shell() -> None:
    output = io.StringIO()
    config = make_config(ServerArgs(api_key=("secret",)), served_names=("it's",))
    Announcer(config, "http://127.0.0.1:1", output).ready(2.5)
    first, second = output.getvalue().splitlines()
    assert first == "Candor is ready: it's at http://127.0.0.1:1 (after 2.5 s). Try:"
    command = shlex.split(second)
    assert command[:2] == ["curl", "http://127.0.0.1:1/v1/chat/completions"]
    assert json.loads(command[-1])["model"] == "it's"
    assert "secret" not in output.getvalue()
