"""Figures for Prometheus. Each HTTP worker keeps its own in a small mapped file of doubles; a scrape adds all files up.

An update is one store into mapped memory (no lock: one thread writes), so that it can happen for every token; the
text is made by prometheus_client from the sums. Files outlive a restarted worker, so counters never go back.
"""

import mmap
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from protocol.ids import count_ids
from protocol.outputs import TextOutput
from runtime.status_board import StatusBoard

PREFIX = "candor_"
FAST_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SLOW_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
ENDPOINTS = ("chat", "completions", "generate", "other")
OUTCOMES = ("2xx", "3xx", "4xx", "5xx", "disconnected")
FINISHES = ("stop", "length", "abort", "error")


class Value:
    """One double: a counter (`add`) or a gauge (`set`)."""

    def __init__(self, view: "memoryview[float]", slot: int) -> None:
        self._view = view
        self._slot = slot

    def add(self, amount: float) -> None:
        self._view[self._slot] += amount

    def set(self, value: float) -> None:
        self._view[self._slot] = value


class Histogram:
    """Counts per bucket, then the sum."""

    def __init__(self, view: "memoryview[float]", slot: int, bounds: tuple[float, ...]) -> None:
        self._view = view
        self._slot = slot
        self._bounds = bounds
        self._sum_slot = slot + len(bounds) + 1

    def observe(self, value: float) -> None:
        self._view[self._slot + bisect_left(self._bounds, value)] += 1.0
        self._view[self._sum_slot] += value


HISTOGRAMS = {
    "time_to_first_token_seconds": ("time from a request's arrival to its first token", SLOW_BUCKETS_S),
    "inter_token_latency_seconds": ("time between two outputs of a request", FAST_BUCKETS_S),
    "e2e_request_latency_seconds": ("time from a request's arrival to its end", SLOW_BUCKETS_S),
}
COUNTERS = {
    "prompt_tokens": "prompt tokens of admitted requests",
    "cached_tokens": "prompt tokens that the prefix cache held",
    "generation_tokens": "generated tokens",
    "adjustments": "adjustments that clients were told",
    "resubmitted_requests": "requests submitted again after a process died",
}
BOARD_GAUGES = {
    "num_requests_running": ("running", "requests that run in the schedulers"),
    "num_requests_waiting": ("waiting", "requests that wait in the schedulers"),
    "kv_pages_total": ("total_pages", "pages of the KV pool"),
    "kv_pages_free": ("free_pages", "pages that a request could have, those of the prefix cache included"),
    "kv_pages_cached": ("cached_pages", "pages that the prefix cache holds"),
    "scheduler_steps": ("steps", "steps of the schedulers so far"),
}
STATE_COUNTERS = {
    "retractions": ("retractions", "requests whose pages were taken back"),
    "spec_decode_num_draft_tokens": ("drafted_tokens", "guessed tokens that were computed"),
    "spec_decode_num_accepted_tokens": ("accepted_draft_tokens", "guessed tokens that were drawn"),
}
"""Of each scheduler's words on its state: the key, and what it counts."""


class Metrics:
    """This worker's figures; `text` is everybody's."""

    def __init__(self, folder: Path, worker: int, model: str) -> None:
        self._folder = folder
        self._model = model
        self._slots = _layout()
        size = 8 * max(slot + width for slot, width in self._slots.values())
        descriptor = os.open(folder / f"metrics-{worker}.bin", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, size)
        self._memory = mmap.mmap(descriptor, size)
        os.close(descriptor)
        self._view = memoryview(self._memory).cast("d")
        self.prompt_tokens = self._value("prompt_tokens")
        self.cached_tokens = self._value("cached_tokens")
        self.generation_tokens = self._value("generation_tokens")
        self.adjustments = self._value("adjustments")
        self.resubmitted = self._value("resubmitted_requests")
        self.running_calls = self._value("http_requests_active")
        self.running_calls.set(0)
        self._first = self._histogram("time_to_first_token_seconds")
        self._next = self._histogram("inter_token_latency_seconds")
        self._whole = self._histogram("e2e_request_latency_seconds")
        self._finishes = {reason: self._value(f"finished:{reason}") for reason in FINISHES}

    def on_output(self, began_s: float, last_s: float, now: float, output: TextOutput) -> None:
        """Counts one output of a request that began and had its last output at these times."""
        tokens = count_ids(output.ids)
        if tokens:
            self.generation_tokens.add(tokens)
            if last_s == began_s:
                self._first.observe(now - began_s)
            else:
                self._next.observe(now - last_s)
        if output.finish is not None:
            self._whole.observe(now - began_s)
            self._finishes[output.finish.reason].add(1)
            if output.index == 0:
                self.cached_tokens.add(output.cached_tokens)

    def count_call(self, endpoint: str, outcome: str) -> None:
        """One HTTP call has been answered."""
        self._value(f"call:{endpoint}:{outcome}").add(1)

    def text(self, board: StatusBoard, states: Mapping[int, Mapping[str, Any]]) -> bytes:
        """The exposition format. `states` are the schedulers' own words, as far as they answered in time."""
        registry = CollectorRegistry()
        registry.register(_Collected(list(self._families(board, states))))
        return generate_latest(registry)

    def close(self) -> None:
        self._view.release()
        self._memory.close()

    def _value(self, name: str) -> Value:
        return Value(self._view, self._slots[name][0])

    def _histogram(self, name: str) -> Histogram:
        return Histogram(self._view, self._slots[name][0], HISTOGRAMS[name][1])

    def _sums(self) -> list[float]:
        sums = [0.0] * len(self._view)
        for path in self._folder.glob("metrics-*.bin"):
            data = path.read_bytes()
            if len(data) == 8 * len(sums):
                sums = [total + value for total, value in zip(sums, memoryview(data).cast("d"), strict=True)]
        return sums

    def _families(self, board: StatusBoard, states: Mapping[int, Mapping[str, Any]]) -> Iterator[Metric]:
        sums = self._sums()
        model = [self._model]
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, text, labels=["model_name"])
            counter.add_metric(model, sums[self._slots[name][0]])
            yield counter
        calls = CounterMetricFamily(PREFIX + "http_requests", "answered calls", labels=["endpoint", "outcome"])
        for endpoint in ENDPOINTS:
            for outcome in OUTCOMES:
                calls.add_metric([endpoint, outcome], sums[self._slots[f"call:{endpoint}:{outcome}"][0]])
        yield calls
        finished = CounterMetricFamily(PREFIX + "finished_choices", "ended choices", labels=["model_name", "reason"])
        for reason in FINISHES:
            finished.add_metric([*model, reason], sums[self._slots[f"finished:{reason}"][0]])
        yield finished
        for name, (text, bounds) in HISTOGRAMS.items():
            slot, width = self._slots[name]
            yield _histogram_family(name, text, model, bounds, sums[slot : slot + width])
        active = GaugeMetricFamily(PREFIX + "http_requests_active", "generating calls that are open")
        active.add_metric([], sums[self._slots["http_requests_active"][0]])
        yield active
        schedulers = [status for status in board.read_all() if status.role == "scheduler"]
        for name, (attribute, text) in BOARD_GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["model_name", "replica"])
            for status in schedulers:
                gauge.add_metric([*model, str(status.index)], float(getattr(status, attribute)))
            yield gauge
        labels = ["model_name", "replica"]
        bias = GaugeMetricFamily(PREFIX + "logit_bias_bytes", "bytes of logit bias matrices", labels=labels)
        for replica, state in states.items():
            bias.add_metric([*model, str(replica)], float(state.get("model_runner", {}).get("logit_bias_bytes", 0)))
        yield bias
        for name, (key, text) in STATE_COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, text, labels=labels)
            for replica, state in states.items():
                counter.add_metric([*model, str(replica)], float(state.get(key, 0)))
            yield counter


class _Collected:
    """What prometheus_client asks for families."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _histogram_family(
    name: str, text: str, model: list[str], bounds: tuple[float, ...], values: list[float]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(PREFIX + name, text, labels=["model_name"])
    total, buckets = 0.0, []
    for bound, count in zip([*map(str, bounds), "+Inf"], values, strict=False):
        total += count
        buckets.append((bound, total))
    family.add_metric(model, buckets=buckets, sum_value=values[-1])
    return family


def _layout() -> dict[str, tuple[int, int]]:
    """(first slot, slots) of every figure, the same in each worker."""
    widths = dict.fromkeys(COUNTERS, 1) | {"http_requests_active": 1}
    widths |= {f"finished:{reason}": 1 for reason in FINISHES}
    widths |= {f"call:{endpoint}:{outcome}": 1 for endpoint in ENDPOINTS for outcome in OUTCOMES}
    widths |= {name: len(bounds) + 2 for name, (_, bounds) in HISTOGRAMS.items()}
    slots: dict[str, tuple[int, int]] = {}
    first = 0
    for name, width in widths.items():
        slots[name] = (first, width)
        first += width
    return slots
