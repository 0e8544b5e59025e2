"""What is over stays over, and an abort ends what it names and nothing else."""

import pytest

from protocol.requests import AbortRequest
from runtime.tombstones import Tombstones, aborts


def test_the_highest_attempt_counts_and_the_oldest_request_is_forgotten() -> None:
    tombstones = Tombstones(capacity=2)
    for request_id, attempt in (("0-a", 3), ("0-b", 0), ("0-a", 1), ("0-c", 0)):
        tombstones.bury(request_id, attempt)
    assert [tombstones.covers("0-a", attempt) for attempt in (0, 3, 4)] == [True, True, False]
    assert tombstones.covers("0-c", 0) and not tombstones.covers("0-b", 0)


@pytest.mark.parametrize(
    ("worker", "request_id", "arrival_s", "over"),
    [
        (1, "1-a", 9.0, True),
        (1, "1-a", 11.0, False),
        (1, "2-a", 9.0, False),
        (1, "1-a", 0.0, False),
        (None, "2-a", 9.0, True),
        (1, "nobody", 9.0, False),
    ],
)
def test_a_worker_takes_along_what_came_before_its_end(
    worker: int | None, request_id: str, arrival_s: float, over: bool
) -> None:
    tombstones = Tombstones()
    tombstones.bury_worker(worker, 10.0)
    assert tombstones.covers(request_id, 0, arrival_s) is over


@pytest.mark.parametrize(
    ("abort", "ended"),
    [
        (AbortRequest("0-x~1"), ["0-x~1"]),
        (AbortRequest("0-x~1", attempt=0), []),
        (AbortRequest("", client_id="x"), ["0-x~1"]),
        (AbortRequest("", all_of_worker=1), ["1-y~2"]),
        (AbortRequest("", abort_all=True), ["0-x~1", "1-y~2", "nobody"]),
        (AbortRequest(""), []),
    ],
)
def test_an_abort_ends_what_it_names(abort: AbortRequest, ended: list[str]) -> None:
    assert [request_id for request_id in ("0-x~1", "1-y~2", "nobody") if aborts(abort, request_id, 1)] == ended
