"""The KV pool as choices see it: pages from the free stack, from eviction, and shared through the tree."""

from collections import Counter
from collections.abc import Iterable

from protocol.plan import Capacity
from scheduler.pages import PagePool
from scheduler.radix_cache import Node, RadixCache
from scheduler.sequence import Sequence


class Memory:
    """Every page is free, in the tree, held by one choice, or on its way back (`_retired`): exactly once."""

    def __init__(self, capacity: Capacity, cache_enabled: bool, probe_pages: int) -> None:
        self._capacity = capacity
        self._cache_enabled = cache_enabled
        self.page_size = capacity.page_size
        self.probe_pages = probe_pages
        self.launched_step = 0
        self.collected_step = 0
        self.reset()

    def reset(self) -> None:
        """As at start: nobody holds anything, nothing is cached."""
        self.pool = PagePool(self._capacity.pages)
        self.cache = RadixCache(self.page_size)
        self._retired: list[tuple[int, int]] = []

    @property
    def usable_pages(self) -> int:
        """Pages that one ordinary request can have at most."""
        return self.pool.usable - self.probe_pages

    def available(self, probe: bool = False) -> int:
        """Pages that can be had now, by eviction if need be."""
        return self.pool.free + self.cache.evictable - (0 if probe else self.probe_pages)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def cacheable_pages(self, sequence: Sequence) -> int:
        """Leading pages that may come from the tree: the last token is always computed, since its logits are wanted,
        and so is every token whose logprob is."""
        if not self._cache_enabled or sequence.scores_prompt:
            return 0
        return (len(sequence.tokens) - 1) // self.page_size

    def acquire(self, sequence: Sequence) -> int:
        """Gives the choice the longest cached prefix of its ids, locked; returns its pages."""
        if not self._cache_enabled:
            return 0
        limit = self.cacheable_pages(sequence)
        sequence.tip, pages = self.cache.acquire(
            sequence.request.message.namespace, sequence.tokens[: limit * self.page_size].tobytes(), limit
        )
        sequence.pages.extend(pages)
        sequence.tree_pages = len(pages)
        sequence.publish_at = (len(pages) + 1) * self.page_size
        sequence.planned = sequence.computed = len(pages) * self.page_size
        return len(pages)

    def grow(self, sequence: Sequence, count: int) -> bool:
        """Takes `count` more pages for the choice; False (and nothing taken) if there are not so many."""
        if self.pool.free < count or not sequence.request.message.probe:
            if self.available(sequence.request.message.probe) < count:
                return False
            shortage = count - self.pool.free
            if shortage > 0:
                self.pool.give(self.cache.evict(shortage))
        sequence.pages.extend(self.pool.take(count))
        return True

    def publish(self, sequence: Sequence, whole: bool = False) -> None:
        """Moves the choice's computed full pages into the tree, where others find them.

        The page of the newest token stays back until a further token is known: if that draw has to be repeated, the
        token is computed again, and nobody may write into a page of the tree. `whole` is for a choice that has ended.
        """
        if sequence.tip is None:
            return
        computed = sequence.computed if whole else min(sequence.computed, len(sequence.tokens) - 1)
        first, last = sequence.tree_pages, computed // self.page_size
        if last <= first:
            return
        key = sequence.tokens[first * self.page_size : last * self.page_size].tobytes()
        sequence.tip, replaced = self.cache.extend(sequence.tip, key, sequence.pages[first:last].tolist())
        for offset, page in replaced:
            self._retire(sequence.pages[first + offset])
            sequence.pages[first + offset] = page
        if replaced:
            sequence.sent_pages = min(sequence.sent_pages, first + replaced[0][0])
        sequence.tree_pages = last
        sequence.publish_at = (last + 1) * self.page_size

    def release(self, sequence: Sequence) -> None:
        """The one place where a choice's pages go back. No step that reads them is in flight."""
        assert sequence.in_flight == 0
        self.publish(sequence, whole=True)
        if sequence.tip is not None:
            self.cache.release(sequence.tip)
        self.pool.give(sequence.pages[sequence.tree_pages :])
        sequence.forget_row()

    def step_collected(self, step: int) -> None:
        """Steps up to this one have run: pages that only they could read are free."""
        self.collected_step = step
        while self._retired and self._retired[0][0] <= step:
            self.pool.give((self._retired.pop(0)[1],))

    def flush(self) -> int:
        """Empties the cache of all that nobody holds; returns the pages."""
        freed = self.cache.evict(self.cache.evictable)
        self.pool.give(freed)
        return len(freed)

    def check(self, holders: Iterable[Sequence]) -> list[str]:
        """What is wrong with the books, in words; an empty list if every page is where it should be, once."""
        count = Counter(self.pool.free_pages())
        count.update(page for _, page in self._retired)
        locks: Counter[int] = Counter()
        for sequence in holders:
            count.update(sequence.pages[sequence.tree_pages :])
            node: Node | None = sequence.tip
            while node is not None:
                locks[id(node)] += 1
                node = node.parent
        cached = evictable = 0
        problems = []
        for node in self.cache.nodes():
            count.update(node.pages)
            cached += len(node.pages)
            evictable += 0 if node.locks else len(node.pages)
            if node.locks != locks[id(node)]:
                problems.append(f"a tree node counts {node.locks} locks and has {locks[id(node)]} holders")
        twice = sorted(page for page, times in count.items() if times > 1)
        lost = sorted(set(range(1, self.pool.usable + 1)) - count.keys())
        if twice:
            problems.append(f"pages {twice[:8]} have more than one owner ({len(twice)} in all)")
        if lost:
            problems.append(f"pages {lost[:8]} have no owner ({len(lost)} in all)")
        if (cached, evictable) != (self.cache.pages, self.cache.evictable):
            problems.append(
                f"the tree counts {self.cache.pages} pages, {self.cache.evictable} evictable: they are {cached}, {evictable}"
            )
        return problems

    def _retire(self, page: int) -> None:
        if self.collected_step >= self.launched_step:
            self.pool.give((page,))
        else:
            self._retired.append((self.launched_step, page))
