"""Pages and the prefix tree against plain models of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.ids import pack_ids
from scheduler.pages import PagePool
from scheduler.radix_cache import Node, RadixCache
from tests.scheduler.fake_model import PAGE

Ids = tuple[int, ...]


def test_pages_are_given_once_and_never_page_zero() -> None:
    pool = PagePool(9)
    assert sorted(pool.take(8)) == list(range(1, 9)) and pool.free == 0
    pool.give([3, 5])
    assert sorted(pool.take(1) + pool.take(1)) == [3, 5]
    pool.give([4])
    with pytest.raises(AssertionError, match="given back twice"):
        pool.give([4])
    with pytest.raises(AssertionError):
        pool.give([0])


class TreeModel:
    """The tree beside a dict of every cached prefix: (namespace, ids of whole pages) -> page of the last of them."""

    def __init__(self) -> None:
        self.tree = RadixCache(PAGE)
        self.pages: dict[tuple[str, Ids], int] = {}
        self.held: list[tuple[str, Ids, Node]] = []
        self.next_page = 1

    def longest(self, namespace: str, ids: Ids, limit: int) -> int:
        pages = 0
        while pages < limit and (namespace, ids[: (pages + 1) * PAGE]) in self.pages:
            pages += 1
        return pages

    def acquire(self, namespace: str, ids: Ids, limit: int) -> None:
        limit = min(limit, len(ids) // PAGE)
        expected = self.longest(namespace, ids, limit)
        assert self.tree.match(namespace, pack_ids(ids), limit) == expected
        tip, pages = self.tree.acquire(namespace, pack_ids(ids), limit)
        assert pages == [self.pages[namespace, ids[: (k + 1) * PAGE]] for k in range(expected)]
        self.held.append((namespace, ids[: expected * PAGE], tip))

    def extend(self, which: int, more: Ids) -> None:
        namespace, prefix, tip = self.held.pop(which % len(self.held))
        more = more[: len(more) // PAGE * PAGE]
        own = list(range(self.next_page, self.next_page + len(more) // PAGE))
        self.next_page += len(own)
        tip, replaced = self.tree.extend(tip, pack_ids(more), own)
        there = self.longest(namespace, prefix + more, (len(prefix) + len(more)) // PAGE) - len(prefix) // PAGE
        assert [offset for offset, _ in replaced] == list(range(there))
        for offset, page in enumerate(own):
            key = (namespace, (prefix + more)[: len(prefix) + (offset + 1) * PAGE])
            if offset < there:
                assert replaced[offset][1] == self.pages[key]
            else:
                self.pages[key] = page
        self.held.append((namespace, prefix + more, tip))

    def release(self, which: int) -> None:
        self.tree.release(self.held.pop(which % len(self.held))[2])

    def evict(self, wanted: int) -> None:
        locked = {(n, ids[: k * PAGE]) for n, ids, _ in self.held for k in range(1, len(ids) // PAGE + 1)}
        assert self.tree.evictable == len(self.pages.keys() - locked)
        freed = set(self.tree.evict(wanted))
        assert len(freed) == min(wanted, len(self.pages.keys() - locked))
        gone = {key for key, page in self.pages.items() if page in freed}
        assert not gone & locked
        for key in gone:
            del self.pages[key]
        # What is left is still reachable: no page went before those behind it.
        assert all(self.longest(n, ids, len(ids) // PAGE) == len(ids) // PAGE for n, ids in self.pages)

    def check(self) -> None:
        assert self.tree.pages == len(self.pages)
        assert sorted(page for node in self.tree.nodes() for page in node.pages) == sorted(self.pages.values())


IDS = st.lists(st.integers(0, 1), max_size=7 * PAGE).map(lambda ids: tuple(ids[k // PAGE] for k in range(len(ids))))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.sampled_from(["", "salt"]), IDS, st.integers(0, 8)),
        st.tuples(st.just("extend"), st.integers(0, 9), IDS),
        st.tuples(st.just("extend"), st.integers(0, 9), IDS),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.just("evict"), st.integers(0, 9)),
    ),
    min_size=5,
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(STEPS)
def test_the_tree_is_a_set_of_prefixes(steps: list[tuple[object, ...]]) -> None:
    model = TreeModel()
    for name, *arguments in steps:
        if name in ("extend", "release") and not model.held:
            continue
        getattr(model, str(name))(*arguments)
        model.check()
    while model.held:
        model.release(0)
    model.evict(len(model.pages))
    model.check()
    assert model.tree.pages == 0 and not list(model.tree.nodes())


def cache_line(tree: RadixCache, ids: Ids, first_page: int) -> None:
    tip, pages = tree.acquire("", pack_ids(ids), len(ids) // PAGE)
    rest = ids[len(pages) * PAGE :]
    tip, _ = tree.extend(tip, pack_ids(rest), list(range(first_page, first_page + len(rest) // PAGE)))
    tree.release(tip)


def test_the_least_recently_used_goes_first_and_a_shared_prefix_last() -> None:
    tree = RadixCache(PAGE)
    shared = (7,) * (2 * PAGE)
    cache_line(tree, shared + (1,) * PAGE, 10)
    cache_line(tree, shared + (2,) * PAGE, 20)
    cache_line(tree, shared + (1,) * PAGE, 30)
    assert tree.evict(1) == [20]
    assert tree.evict(1) == [12]
    assert tree.evict(9) == [10, 11]


def test_a_growing_conversation_is_one_node() -> None:
    tree = RadixCache(PAGE)
    tip, _ = tree.acquire("", b"", 0)
    for page in range(1, 50):
        tip, _ = tree.extend(tip, pack_ids([page] * PAGE), [page])
    assert sum(1 for _ in tree.nodes()) == 2
