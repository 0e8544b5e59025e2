"""The supervisor with real processes and sockets; only what the children do is fake."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.run_directory import RunDirectory
from runtime.server_args import ServerArgs
from tests.samples import make_config

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0


class Server:
    """A running supervisor, seen from outside."""

    def __init__(self, folder: Path, runs: Path, fake: dict[str, str], flags: dict[str, Any]) -> None:
        self.folder = folder
        self.runs = runs
        config_file = folder / "config"
        args = ServerArgs(**({"port": 0} | flags))
        config_file.write_bytes(msgspec.msgpack.encode(make_config(args, config={"folder": str(folder), "fake": fake})))
        search_path = os.pathsep.join((str(ROOT), str(Path(__file__).parent)))
        environment = os.environ | {"PYTHONPATH": search_path, "CANDOR_RUN_FOLDER": str(self.runs)}
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fake_launch", str(config_file)], env=environment, stdout=out, stderr=err
            )

    def output(self) -> str:
        return (self.folder / "out").read_text()

    def errors(self) -> str:
        return (self.folder / "err").read_text()

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """Polls a condition that must come true; the time limit only ends a failing test."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            if found := condition():
                return found
            time.sleep(0.01)
        raise AssertionError(f"never: {what}\n{self.output()}\n{self.errors()}")

    def wait_ready(self) -> "Server":
        self.wait_for(lambda: "is ready" in self.output() or self.process.poll() is not None, "ready")
        assert self.process.poll() is None, self.errors()
        return self

    def wait_end(self) -> int:
        return self.process.wait(PATIENCE_S)

    def told(self, name: str, incarnation: int = 1) -> list[dict[str, Any]]:
        """What a child has written down."""
        path = self.folder / f"{name.replace(' ', '-')}-{incarnation}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def knows(self, name: str, incarnation: int = 1) -> set[tuple[str, int, int]]:
        """(role, index, incarnation) of each peer that the child was introduced to."""
        ups = [message["peer"] for message in self.told(name, incarnation) if message["type"] == "peer_up"]
        return {(peer["role"], peer["index"], peer["incarnation"]) for peer in ups}

    def children(self) -> dict[str, int]:
        """Process id by title, of the supervisor's living children."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                status = (entry / "stat").read_text()
                title = (entry / "cmdline").read_bytes().split(b"\0")[0].decode()
            except OSError:
                continue
            if status.rpartition(")")[2].split()[1:2] == [str(self.process.pid)] and title.startswith("candor: "):
                found[title.removeprefix("candor: ")] = int(entry.name)
        return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    servers: list[Server] = []
    runs = Path(tempfile.mkdtemp(prefix="c"))  # tmp_path is too long for a unix socket

    def begin(fake: dict[str, str] | None = None, **flags: Any) -> Server:
        servers.append(Server(tmp_path, runs, fake or {}, flags))
        return servers[-1]

    yield begin
    for server in servers:
        server.process.kill()
        server.process.wait()
    shutil.rmtree(runs)


def test_everybody_is_introduced_and_the_start_is_announced(start: Start) -> None:
    server = start(http_workers=2, detokenizer_workers=2).wait_ready()
    everyone = {("scheduler", 0, 1), ("tokenizer", 0, 1), ("detokenizer", 0, 1), ("detokenizer", 1, 1)}
    everyone |= {("http", 0, 1), ("http", 1, 1)}
    server.wait_for(
        lambda: all(server.knows(f"{peer[0]} {peer[1]}") == everyone - {peer} for peer in everyone), "introductions"
    )
    assert set(server.children()) == {f"{role} {index}" for role, index, _ in everyone}
    lines = server.output().splitlines()
    assert lines[0] == "  device = cpu  (a test)"
    assert "  chat template = chatml  (checkpoint)" in lines
    assert lines[-1].startswith("  curl http://127.0.0.1:")
    assert server.told("scheduler 0")[0]["OMP_NUM_THREADS"] == "3"
    assert server.told("tokenizer 0")[0]["OMP_NUM_THREADS"] == "1"


def test_an_idle_server_stops_at_once_and_leaves_nothing(start: Start) -> None:
    server = start(drain_timeout_s=600.0).wait_ready()
    children = server.children()
    server.process.terminate()
    assert server.wait_end() == 0
    assert not any(alive(pid) for pid in children.values())
    assert list(server.runs.iterdir()) == []
    assert "Traceback" not in server.errors()


def test_running_work_is_drained_front_first(start: Start) -> None:
    server = start({"http 0": "busy"}).wait_ready()
    server.process.send_signal(signal.SIGINT)
    server.wait_for(lambda: [m for m in server.told("http 0") if m["type"] == "drain"], "http is told to drain")
    assert not [message for message in server.told("scheduler 0") if message["type"] == "drain"]
    (server.folder / "idle").touch()
    assert server.wait_end() == 0
    assert [message for message in server.told("scheduler 0") if message["type"] == "drain"]


def test_a_drain_has_a_deadline(start: Start) -> None:
    server = start({"http 0": "busy"}, drain_timeout_s=0.1).wait_ready()
    server.process.terminate()
    assert server.wait_end() == 0


def test_a_second_signal_ends_at_once(start: Start) -> None:
    server = start({"http 0": "busy"}, drain_timeout_s=600.0).wait_ready()
    children = server.children()
    server.process.terminate()
    server.wait_for(lambda: [m for m in server.told("http 0") if m["type"] == "drain"], "http is told to drain")
    server.process.terminate()
    assert server.wait_end() == 128 + signal.SIGTERM
    assert not any(alive(pid) for pid in children.values())


def test_three_signals_at_once_end_at_once(start: Start) -> None:
    server = start({"http 0": "busy"}, drain_timeout_s=600.0).wait_ready()
    server.process.send_signal(signal.SIGSTOP)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        server.process.send_signal(number)
    server.process.send_signal(signal.SIGCONT)
    assert server.wait_end() in {128 + signal.SIGHUP, 128 + signal.SIGINT, 128 + signal.SIGTERM}


def test_a_child_that_ignores_shutdown_is_killed(start: Start) -> None:
    server = start({"detokenizer 0": "deaf"}).wait_ready()
    server.process.terminate()
    assert server.wait_end() == 0


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ("fail", "candor: the weights do not fit"),
        ("raise", "candor: scheduler 0 failed: RuntimeError: no such layer"),
        ("vanish", "candor: scheduler 0 ended with status 3"),
    ],
)
def test_a_failed_start_is_one_sentence_and_no_process_is_left(start: Start, plan: str, sentence: str) -> None:
    server = start({"scheduler 0": plan})
    assert server.wait_end() == 1
    assert sentence in server.errors().splitlines()
    assert server.children() == {}
    assert list(server.runs.iterdir()) == []


def test_a_port_in_use_is_told_within_a_second_of_looking(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = start(port=taken.getsockname()[1])
        assert server.wait_end() == 1
    assert "is in use" in server.errors()
    assert server.output() == ""


def test_a_killed_process_comes_back_and_everybody_hears_of_it(start: Start) -> None:
    server = start().wait_ready()
    os.kill(server.children()["scheduler 0"], signal.SIGKILL)
    server.wait_for(lambda: ("scheduler", 0, 2) in server.knows("http 0"), "http hears of the new scheduler")
    server.wait_for(lambda: len(server.knows("scheduler 0", 2)) == 3, "the new scheduler hears of the others")
    server.wait_for(lambda: ("scheduler", 0, 2) in server.knows("detokenizer 0"), "the detokenizer, too")
    order = [
        (message["type"], message["peer"]["incarnation"])
        for message in server.told("detokenizer 0")
        if message.get("peer", {}).get("role") == "scheduler"
    ]
    assert order[:2] == [("peer_up", 1), ("peer_down", 1)]
    server.process.terminate()
    assert server.wait_end() == 0


def test_a_new_http_worker_gets_the_same_listening_socket(start: Start) -> None:
    server = start().wait_ready()
    port = int(server.output().rpartition("http://127.0.0.1:")[2].partition("/")[0])
    os.kill(server.children()["http 0"], signal.SIGKILL)
    server.wait_for(lambda: ("http", 0, 2) in server.knows("scheduler 0"), "the new worker is introduced")
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass


def test_a_rank_takes_its_replica_down_and_no_other(start: Start) -> None:
    server = start(tp_size=2, dp_size=2).wait_ready()
    server.wait_for(lambda: server.knows("rank 1") and server.knows("rank 3"), "ranks are introduced")
    assert server.knows("rank 1") == {("scheduler", 0, 1)}
    assert server.knows("rank 3") == {("scheduler", 1, 1)}
    server.wait_for(lambda: len(server.knows("scheduler 0")) == 5, "the scheduler knows its rank and the others")
    assert ("rank", 1, 1) in server.knows("scheduler 0")
    assert ("rank", 3, 1) not in server.knows("scheduler 0")
    other = server.children()["scheduler 1"]
    os.kill(server.children()["rank 1"], signal.SIGKILL)
    server.wait_for(lambda: server.knows("rank 1", 2) == {("scheduler", 0, 2)}, "the rank is back with a new scheduler")
    assert server.children()["scheduler 1"] == other


def test_too_many_restarts_end_the_server(start: Start) -> None:
    server = start(max_restarts=1).wait_ready()
    os.kill(server.children()["detokenizer 0"], signal.SIGKILL)
    server.wait_for(lambda: ("detokenizer", 0, 2) in server.knows("scheduler 0"), "the first restart")
    os.kill(server.children()["detokenizer 0"], signal.SIGKILL)
    assert server.wait_end() == 1
    assert "detokenizer 0 was ended by SIGKILL" in server.errors()
    assert "more than 1 restarts within 300 s" in server.errors()
    assert server.children() == {}


def test_a_stuck_process_is_dumped_and_restarted(start: Start, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    server = start({"scheduler 0": "stick"}, stall_timeout_s=2.0, crash_dump_folder=str(dumps)).wait_ready()
    server.wait_for(lambda: ("scheduler", 0, 2) in server.knows("http 0"), "the scheduler is back")
    assert "scheduler 0 was stuck (its loop did not turn" in server.errors()
    assert "fake_child.py" in server.errors()  # its stacks
    (folder,) = dumps.iterdir()
    assert "scheduler 0 was stuck" in (folder / "reason.txt").read_text()
    assert "fake_child.py" in (folder / "stacks.txt").read_text()
    assert json.loads((folder / "plan.json").read_text()) == {"step": 5, "requests": ["0-abc"]}
    board = json.loads((folder / "board.json").read_text())
    assert [(entry["role"], entry["steps"]) for entry in board][:2] == [("supervisor", 0), ("scheduler", 4)]


def test_evidence_that_can_t_be_kept_does_not_keep_a_process_from_coming_back(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = start(crash_dump_folder=str(tmp_path / "file")).wait_ready()
    os.kill(server.children()["tokenizer 0"], signal.SIGKILL)
    server.wait_for(lambda: ("tokenizer", 0, 2) in server.knows("http 0"), "the tokenizer manager is back")
    assert "can't be kept" in server.errors()


def test_children_die_with_a_killed_supervisor_and_the_next_one_cleans_up(start: Start) -> None:
    server = start().wait_ready()
    children = server.children()
    server.process.kill()
    server.process.wait()
    server.wait_for(lambda: not any(alive(pid) for pid in children.values()), "no orphans")
    (left,) = server.runs.iterdir()
    assert left.stat().st_mode & 0o777 == 0o700
    successor = RunDirectory(server.runs)
    assert list(server.runs.iterdir()) == [successor.path]
    successor.close()


def test_a_terminal_interrupt_reaches_children_that_ignore_it(start: Start) -> None:
    server = start().wait_ready()
    before = server.children()
    for pid in before.values():
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    os.kill(before["scheduler 0"], signal.SIGKILL)
    server.wait_for(lambda: ("scheduler", 0, 2) in server.knows("http 0"), "the scheduler is back")
    after = server.children()
    assert {name: pid for name, pid in before.items() if name != "scheduler 0"} == {
        name: pid for name, pid in after.items() if name != "scheduler 0"
    }


def test_the_supervisor_imports_no_torch() -> None:
    script = "import launch, sys; assert not {'torch', 'transformers', 'xgrammar'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
