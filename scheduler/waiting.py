"""The queue: who is looked at first when there is room."""

import bisect
import itertools
from collections.abc import Callable, Iterator
from typing import Literal

from scheduler.sequence import Rank, Sequence

Policy = Literal["fcfs", "lpm", "priority"]

LOOK_AHEAD = 256
"""Choices that one step looks at. Behind them nobody is passed over who could have run long before."""

MATCHED = 64
"""Choices whose cached prefix policy lpm compares in one step: a match of a long prompt costs tens of microseconds."""

PATIENCE_S: dict[Policy, float] = {"fcfs": float("inf"), "lpm": 10.0, "priority": 60.0}
"""How long a choice can be passed over by later ones before it goes first whatever the policy says."""


def _rank(sequence: Sequence) -> Rank:
    return sequence.rank


class WaitingQueue:
    """Waiting choices in rank order: probes, then (policy priority) higher priorities, then arrival.

    Retracted and resubmitted choices keep their arrival, so they come back to their old place.
    """

    def __init__(self, policy: Policy, cached_pages: Callable[[Sequence], int]) -> None:
        self._policy = policy
        self._cached_pages = cached_pages
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        bisect.insort(self._sequences, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        position = bisect.bisect_left(self._sequences, sequence.rank, key=_rank)
        assert self._sequences[position] is sequence
        del self._sequences[position]

    def candidates(self, now: float) -> list[Sequence]:
        """Those to look at in this step, in order. Nobody starves: whoever has waited too long goes first."""
        head = list(itertools.islice(self._sequences, LOOK_AHEAD))
        if self._policy == "fcfs" or len(head) < 2:
            return head
        patience_s = PATIENCE_S[self._policy]
        overdue = [sequence for sequence in self._sequences if now - sequence.rank[2] > patience_s]
        overdue.sort(key=lambda sequence: (sequence.rank[0], sequence.rank[2:]))
        if self._policy == "lpm":
            # Sorting is stable: among equals the earlier arrival stays first. A retracted choice is half done, so it
            # comes before everyone but probes.
            head[:MATCHED] = sorted(
                head[:MATCHED],
                key=lambda sequence: (
                    sequence.rank[0],
                    not sequence.retractions,
                    -self._cached_pages(sequence) if sequence.producer is None else 0,
                ),
            )
        probes = [sequence for sequence in head if not sequence.rank[0]]
        return list(dict.fromkeys((*probes, *overdue, *head)))[:LOOK_AHEAD]

    def lowest(self) -> Sequence | None:
        """The one that a full queue could best do without: lowest priority, then youngest, never begun."""
        for sequence in reversed(self._sequences):
            if not sequence.request.started and not sequence.request.message.probe:
                return sequence
        return None
