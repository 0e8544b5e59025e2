"""Ranks that watch each other: who is lost is noticed, who is slow to begin or alive is not."""

import pytest
from torch._C._distributed_c10d import HashStore, Store

from model_runner.parallel.watch import BEAT_S, FALLEN, LOST_AFTER_S, RankWatch

TURNS = int(LOST_AFTER_S / BEAT_S)


class DeadStore(HashStore):
    """A store whose keeper is gone."""

    def add(self, key: str, amount: int) -> int:
        raise RuntimeError("connection reset")


def unused(reason: str) -> None:
    raise AssertionError(reason)


@pytest.fixture
def store() -> Store:
    return HashStore()


def test_ranks_that_beat_are_not_lost(store: Store) -> None:
    watches = [RankWatch(store, rank, 3, unused) for rank in range(3)]
    for _ in range(3 * TURNS):
        assert [watch.look() for watch in watches] == [None] * 3


def test_a_rank_that_stops_beating_is_named(store: Store) -> None:
    here, gone = RankWatch(store, 0, 2, unused), RankWatch(store, 1, 2, unused)
    gone.look()
    looks = [here.look() for _ in range(TURNS + 1)]
    assert looks[:-1] == [None] * TURNS
    assert looks[-1] == f"rank 1 has not been heard of for {LOST_AFTER_S:g} s"


def test_a_rank_that_still_loads_is_waited_for(store: Store) -> None:
    here = RankWatch(store, 0, 2, unused)
    assert [here.look() for _ in range(3 * TURNS)] == [None] * 3 * TURNS


def test_a_fallen_group_is_left(store: Store) -> None:
    store.set(FALLEN, "rank 1 has started again")
    assert RankWatch(store, 0, 2, unused).look() == "rank 1 has started again"


def test_rank_0s_end_is_noticed() -> None:
    assert "rank 0 can't be reached any more (connection reset)" in str(RankWatch(DeadStore(), 1, 2, unused).look())


def test_the_thread_tells_once_and_ends() -> None:
    told: list[str] = []
    store = HashStore()
    store.set(FALLEN, "over")
    watch = RankWatch(store, 0, 2, told.append)
    watch.start()
    watch.join(10)
    assert told == ["over"] and not watch.is_alive()
