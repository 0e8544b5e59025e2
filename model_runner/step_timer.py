"""How long a step keeps the device busy, measured without waiting for it."""

import time

import torch


class StepTimer:
    """Times the parts of one step: each `begin` has its `end`, what lies between parts does not count."""

    def __init__(self, device: torch.device) -> None:
        self._events = device.type == "cuda"
        self._parts: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._began_ns = 0
        self._host_ns = 0

    def begin(self) -> None:
        if self._events:
            self._parts.append((_event(), _event()))
            self._parts[-1][0].record()
        self._began_ns = time.perf_counter_ns()

    def end(self) -> None:
        self._host_ns += time.perf_counter_ns() - self._began_ns
        if self._events:
            self._parts[-1][1].record()

    def microseconds(self) -> int:
        """The parts together. On CUDA it waits for the last of them."""
        if not self._events:
            return self._host_ns // 1000
        if self._parts:
            self._parts[-1][1].synchronize()
        return int(1000 * sum(begin.elapsed_time(end) for begin, end in self._parts))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
