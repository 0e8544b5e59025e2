"""The board: one writer per slot, readers that never block, the last whole plan after any interruption."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.status_board import MAX_PLAN_BYTES, StatusBoard


@pytest.fixture
def board(tmp_path: Path) -> StatusBoard:
    return StatusBoard.create(tmp_path / "board", 3)


def test_what_one_process_writes_another_mapping_reads(board: StatusBoard, tmp_path: Path) -> None:
    writer = board.slot(1)
    writer.claim("scheduler", 2, 5, 4711)
    writer.update(
        state="ready", steps=7, waiting=1, running=3, free_pages=90, total_pages=100, cached_pages=4, pending=2
    )
    status = StatusBoard.open(tmp_path / "board").read(1)
    assert (status.role, status.index, status.incarnation, status.pid) == ("scheduler", 2, 5, 4711)
    assert (status.state, status.steps, status.waiting, status.running) == ("ready", 7, 1, 3)
    assert (status.free_pages, status.total_pages, status.cached_pages, status.pending) == (90, 100, 4, 2)
    assert 0 <= status.heartbeat_age_s < 60
    assert [entry.role for entry in board.read_all()] == ["scheduler"]


def test_the_file_is_private(board: StatusBoard, tmp_path: Path) -> None:
    assert (tmp_path / "board").stat().st_mode & 0o077 == 0


def test_a_stall_counts_from_the_arrival_of_work_not_from_the_last_step(
    board: StatusBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000_000]
    monkeypatch.setattr("runtime.status_board.time.monotonic_ns", lambda: now[0])
    writer = board.slot(0)
    writer.claim("scheduler", 0, 1, 1)
    now[0] += 100 * 10**9  # long idle
    writer.update(pending=1)
    now[0] += 2 * 10**9
    assert board.read(0).stalled_s == pytest.approx(2)
    writer.update(steps=1)
    assert board.read(0).stalled_s == 0
    now[0] += 3 * 10**9
    writer.update(pending=4)  # more work does not restart the clock
    assert board.read(0).stalled_s == pytest.approx(3)
    writer.update(pending=0)
    assert board.read(0).stalled_s == 0


def test_the_last_whole_plan_survives_a_torn_write(board: StatusBoard) -> None:
    writer = board.slot(2)
    assert board.read_plan(2) is None
    for step in range(5):
        writer.write_plan(b"plan %d" % step)
    assert board.read_plan(2) == b"plan 4"
    newest = writer._plan_offset(writer._plan_sequence % 2)
    board._memory[newest + 24] ^= 1  # as if the process died in the middle of writing it
    assert board.read_plan(2) == b"plan 3"


def test_a_plan_too_long_replaces_the_former_one(board: StatusBoard) -> None:
    writer = board.slot(2)
    writer.write_plan(b"x" * MAX_PLAN_BYTES)
    assert board.read_plan(2) == b"x" * MAX_PLAN_BYTES
    writer.write_plan(b"x" * (MAX_PLAN_BYTES + 1))
    assert board.read_plan(2) == b""


def test_plans_and_counters_outlive_sigkill(board: StatusBoard, tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from runtime.status_board import StatusBoard\n"
        "slot = StatusBoard.open(sys.argv[1]).slot(1); slot.claim('scheduler', 0, 1, os.getpid())\n"
        "slot.update(steps=9); slot.write_plan(b'step 9'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "board"], check=False, cwd=Path(__file__).parents[2]
    )
    assert finished.returncode == -signal.SIGKILL
    assert (board.read(1).steps, board.read_plan(1)) == (9, b"step 9")


def test_a_new_incarnation_starts_at_zero(board: StatusBoard) -> None:
    writer = board.slot(0)
    writer.claim("http", 0, 1, os.getpid())
    writer.update(state="ready", steps=3, pending=1)
    writer.claim("http", 0, 2, os.getpid())
    status = board.read(0)
    assert (status.incarnation, status.state, status.steps, status.pending) == (2, "starting", 0, 0)


def test_other_files_are_no_boards(tmp_path: Path) -> None:
    path = tmp_path / "board"
    path.write_bytes(b"\0" * 4096)
    with pytest.raises(ValueError, match="not a status board"):
        StatusBoard.open(path)
    with pytest.raises(IndexError):
        StatusBoard.create(tmp_path / "other", 1).slot(1)
