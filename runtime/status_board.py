"""The status board: one memory-mapped file per server with a fixed slot per process, for cheap health and evidence.

Each slot has one writer at a time: its process (before that lives, the supervisor). Readers never block and never
wait; every number is an aligned 8-byte field. The plan of the step about to run is kept in two areas written in turn,
each with its length and checksum: whoever reads after a SIGKILL finds the newest one that is whole.

Times are CLOCK_MONOTONIC, which all processes of a host share.
"""

import mmap
import os
import struct
import time
import zlib
from pathlib import Path
from typing import Any, Literal

import msgspec

State = Literal["empty", "starting", "ready", "recovering", "draining", "stopped"]

STATES: tuple[State, ...] = ("empty", "starting", "ready", "recovering", "draining", "stopped")
SUPERVISOR_SLOT = 0
MAX_PLAN_BYTES = 16 << 10

_HEADER = struct.Struct("<8sQ")
_MAGIC = b"CANDORB1"
_ROLE_BYTES = 16
_NUMBERS = (
    "index",
    "incarnation",
    "pid",
    "state",
    "heartbeat_ns",
    "state_ns",
    "step_ns",
    "pending_ns",
    "steps",
    "waiting",
    "running",
    "free_pages",
    "total_pages",
    "cached_pages",
    "pending",
)
_COUNTERS = frozenset(("steps", "waiting", "running", "free_pages", "total_pages", "cached_pages", "pending"))
_FIELD_OFFSET = {name: _ROLE_BYTES + 8 * position for position, name in enumerate(_NUMBERS)}
_RECORD = struct.Struct(f"<{_ROLE_BYTES}s{len(_NUMBERS)}q")
_NUMBER = struct.Struct("<q")
_PLAN_HEADER = struct.Struct("<QQQ")  # sequence number, length, checksum
_PLAN_STRIDE = _PLAN_HEADER.size + MAX_PLAN_BYTES
_PLANS_OFFSET = 512
_SLOT_BYTES = _PLANS_OFFSET + 2 * _PLAN_STRIDE


class ProcessStatus(msgspec.Struct, frozen=True):
    """What one slot said. `stalled_s`: for how long work has been pending without a step (0 if none is pending)."""

    role: str
    index: int
    incarnation: int
    pid: int
    state: State
    heartbeat_age_s: float
    state_age_s: float
    step_age_s: float
    stalled_s: float
    steps: int
    waiting: int
    running: int
    free_pages: int
    total_pages: int
    cached_pages: int
    pending: int


class SlotWriter:
    """The writing side of one slot. `beat` costs one 8-byte store: call it in every turn of the process's loop."""

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._memory = memory
        self._offset = offset
        self._plan_sequence = max(header[0] for header in (self._plan_header(0), self._plan_header(1)))

    def claim(self, role: str, index: int, incarnation: int, pid: int) -> None:
        """Names the process that the slot belongs to from now on, state "starting", counters at zero; the last plan stays."""
        now = time.monotonic_ns()
        values = dict.fromkeys(_NUMBERS, 0) | {
            "index": index,
            "incarnation": incarnation,
            "pid": pid,
            "state": STATES.index("starting"),
            "heartbeat_ns": now,
            "state_ns": now,
            "step_ns": now,
        }
        _RECORD.pack_into(self._memory, self._offset, role.encode(), *values.values())

    def beat(self) -> None:
        """The loop is alive."""
        self._put("heartbeat_ns", time.monotonic_ns())

    def update(self, *, state: State | None = None, **counters: int) -> None:
        """Sets the state and any of: steps, waiting, running, free_pages, total_pages, cached_pages, pending (work that
        awaits a step). Beats, too."""
        now = time.monotonic_ns()
        if state is not None and self._get("state") != STATES.index(state):
            self._put("state_ns", now)
            self._put("state", STATES.index(state))
        for name, value in counters.items():
            assert name in _COUNTERS, name
            former = self._get(name)
            if name == "steps" and value != former:
                self._put("step_ns", now)
            elif name == "pending" and value and not former:
                self._put("pending_ns", now)
            if value != former:
                self._put(name, value)
        self._put("heartbeat_ns", now)

    def set_pid(self, pid: int) -> None:
        self._put("pid", pid)

    def write_plan(self, plan: bytes) -> None:
        """Keeps the plan of the step about to run; one longer than MAX_PLAN_BYTES is kept as an empty plan."""
        if len(plan) > MAX_PLAN_BYTES:
            plan = b""
        self._plan_sequence += 1
        offset = self._plan_offset(self._plan_sequence % 2)
        start = offset + _PLAN_HEADER.size
        self._memory[start : start + len(plan)] = plan
        _PLAN_HEADER.pack_into(self._memory, offset, self._plan_sequence, len(plan), zlib.crc32(plan))

    def _plan_offset(self, area: int) -> int:
        return self._offset + _PLANS_OFFSET + area * _PLAN_STRIDE

    def _plan_header(self, area: int) -> tuple[int, int, int]:
        sequence, length, checksum = _PLAN_HEADER.unpack_from(self._memory, self._plan_offset(area))
        return sequence, length, checksum

    def _put(self, name: str, value: int) -> None:
        _NUMBER.pack_into(self._memory, self._offset + _FIELD_OFFSET[name], value)

    def _get(self, name: str) -> int:
        value: int = _NUMBER.unpack_from(self._memory, self._offset + _FIELD_OFFSET[name])[0]
        return value


class StatusBoard:
    """The mapped file. Slot 0 is the supervisor's own: its state is the server's."""

    def __init__(self, memory: mmap.mmap, slots: int) -> None:
        self._memory = memory
        self.slots = slots

    @classmethod
    def create(cls, path: str | Path, slots: int) -> "StatusBoard":
        """Makes the file with `slots` empty slots, readable by its owner only."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Real blocks, not a hole: writing into a hole on a disk that has filled up meanwhile is a SIGBUS.
            os.posix_fallocate(descriptor, 0, _HEADER.size + slots * _SLOT_BYTES)
            memory = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        _HEADER.pack_into(memory, 0, _MAGIC, slots)
        return cls(memory, slots)

    @classmethod
    def open(cls, path: str | Path) -> "StatusBoard":
        """Maps an existing board; ValueError if the file is none."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            memory = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        magic, slots = _HEADER.unpack_from(memory, 0)
        if magic != _MAGIC or len(memory) != _HEADER.size + slots * _SLOT_BYTES:
            memory.close()
            raise ValueError(f"{path} is not a status board")
        return cls(memory, slots)

    def slot(self, position: int) -> SlotWriter:
        return SlotWriter(self._memory, self._slot_offset(position))

    def read(self, position: int) -> ProcessStatus:
        role, *numbers = _RECORD.unpack_from(self._memory, self._slot_offset(position))
        now = time.monotonic_ns()
        values: dict[str, Any] = dict(zip(_NUMBERS, numbers, strict=True))

        def age_s(name: str) -> float:
            # Never negative: the clock was read after the record, but on another processor.
            age_ns: int = now - values.pop(name)
            return max(0, age_ns) / 1e9

        heartbeat_age_s, state_age_s, step_age_s = age_s("heartbeat_ns"), age_s("state_ns"), age_s("step_ns")
        pending_age_s = age_s("pending_ns")
        return ProcessStatus(
            role=role.rstrip(b"\0").decode(),
            heartbeat_age_s=heartbeat_age_s,
            state_age_s=state_age_s,
            step_age_s=step_age_s,
            stalled_s=min(step_age_s, pending_age_s) if values["pending"] else 0.0,
            state=STATES[values.pop("state")],
            **values,
        )

    def read_all(self) -> list[ProcessStatus]:
        """Every slot that belongs to a process, in order."""
        statuses = [self.read(position) for position in range(self.slots)]
        return [status for status in statuses if status.state != "empty"]

    def read_plan(self, position: int) -> bytes | None:
        """The newest whole plan of the slot, or None."""
        writer = SlotWriter(self._memory, self._slot_offset(position))
        for sequence, area in sorted(((writer._plan_header(area)[0], area) for area in (0, 1)), reverse=True):
            _, length, checksum = writer._plan_header(area)
            start = writer._plan_offset(area) + _PLAN_HEADER.size
            plan = self._memory[start : start + min(length, MAX_PLAN_BYTES)]
            if sequence and zlib.crc32(plan) == checksum:
                return plan
        return None

    def close(self) -> None:
        self._memory.close()

    def _slot_offset(self, position: int) -> int:
        if not 0 <= position < self.slots:
            raise IndexError(f"the board has {self.slots} slots, not {position + 1}")
        return _HEADER.size + position * _SLOT_BYTES
