"""What this machine has, read without torch: cores, memory, processor flags, NVIDIA GPUs."""

import os
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Hardware:
    """`cores` and `memory_bytes` are what this process may use, container limits included."""

    cores: int
    memory_bytes: int
    available_bytes: int
    processor_flags: frozenset[str]
    gpus: int


def read_hardware(root: Path = Path("/"), *, cuda_visible_devices: str | None = None) -> Hardware:
    """Reads /proc, /sys and /dev under `root`. GPUs that CUDA_VISIBLE_DEVICES hides (it is "" or "-1") don't count."""
    hidden = cuda_visible_devices is not None and cuda_visible_devices.strip() in ("", "-1")
    memory = _meminfo(root / "proc/meminfo")
    limit, used = _memory_limit(root / "sys/fs/cgroup")
    total = min(memory.get("MemTotal", 0), limit)
    available = min(memory.get("MemAvailable", 0), max(0, limit - used))
    return Hardware(
        cores=_cores(root / "sys/fs/cgroup"),
        memory_bytes=total,
        available_bytes=available,
        processor_flags=_processor_flags(root / "proc/cpuinfo"),
        gpus=0 if hidden else len(_gpus(root / "dev")),
    )


def _cores(cgroup: Path) -> int:
    """Cores of the affinity mask, cut to the container's CPU quota: threads beyond it only get throttled."""
    cores = len(os.sched_getaffinity(0))
    fields = _text(cgroup / "cpu.max").split()
    if len(fields) == 2 and fields[0] != "max":
        return max(1, min(cores, int(fields[0]) // int(fields[1])))
    quota, period = _text(cgroup / "cpu/cpu.cfs_quota_us"), _text(cgroup / "cpu/cpu.cfs_period_us")
    if quota and period and int(quota) > 0:
        return max(1, min(cores, int(quota) // int(period)))
    return cores


def _memory_limit(cgroup: Path) -> tuple[int, int]:
    """Bytes that the container may use and uses, its page cache not counted (the kernel gives it back)."""
    for folder, limit_name, used_name in (
        (cgroup, "memory.max", "memory.current"),
        (cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit = _text(folder / limit_name)
        if limit.isdigit():
            statistics = dict(
                line.split() for line in _text(folder / "memory.stat").splitlines() if line.count(" ") == 1
            )
            cached = int(statistics.get("inactive_file", 0)) + int(statistics.get("active_file", 0))
            used = int(_text(folder / used_name) or 0)
            return int(limit), max(0, used - cached)
    return _NO_LIMIT, 0


def _meminfo(path: Path) -> dict[str, int]:
    values = {}
    for line in _text(path).splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdigit():
            values[name] = int(fields[0]) * 1024
    return values


def _processor_flags(path: Path) -> frozenset[str]:
    for line in _text(path).splitlines():
        name, _, rest = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(rest.split())
    return frozenset()


def _gpus(devices: Path) -> list[Path]:
    """Device nodes of NVIDIA's driver: nvidia0, nvidia1, ..."""
    try:
        return [entry for entry in devices.iterdir() if entry.name.startswith("nvidia") and entry.name[6:].isdigit()]
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
