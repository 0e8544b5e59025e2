"""CPU time and memory of a process and all its descendants, from /proc."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TreeUsage:
    """`machine_cpu_s` is everybody's CPU time since boot; `pss_bytes` counts shared pages once over those who share them."""

    cpu_s: float = 0.0
    machine_cpu_s: float = 0.0
    pss_bytes: int = 0
    processes: int = 0


def tree_usage(pid: int | None) -> TreeUsage:
    """Usage now; zeros without a process. Processes that end meanwhile are left out."""
    if pid is None:
        return TreeUsage()
    ticks = os.sysconf("SC_CLK_TCK")
    busy = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]]
    cpu_ticks, pss, count, todo = 0, 0, 0, [pid]
    while todo:
        folder = Path(f"/proc/{todo.pop()}")
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            rollup = (folder / "smaps_rollup").read_text()
            for task in (folder / "task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
        except (OSError, IndexError):
            continue
        cpu_ticks += int(fields[11]) + int(fields[12])
        pss += sum(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:"))
        count += 1
    machine = sum(busy) - busy[3] - busy[4]  # all but idle and waiting for devices
    return TreeUsage(cpu_ticks / ticks, machine / ticks, pss, count)
