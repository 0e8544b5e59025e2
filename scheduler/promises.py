"""Prefixes that are being computed right now, so that whoever needs the same one can wait for it.

A waiter holds nothing. It waits only while the producer advances in every step: if the producer is left out of a plan,
retracted or ended, the waiter goes on by itself with what is cached by then.
"""

from array import array

from scheduler.sequence import Sequence, State

Key = tuple[str, int, bytes]


class Promises:
    """Finds the producer of a choice's next page: keyed by namespace, position of the page and the page's ids."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._producers: dict[Key, Sequence] = {}
        self._keys: dict[Sequence, Key] = {}

    def announce(self, producer: Sequence) -> None:
        """The producer's next page that is not in the tree yet will be there soon (again after each page)."""
        self.withdraw(producer)
        if producer.tip is None or (producer.tree_pages + 1) * self._page_size > len(producer.tokens):
            return
        key = self._key(producer, producer.tree_pages)
        if self._producers.setdefault(key, producer) is producer:
            self._keys[producer] = key

    def renew(self, producer: Sequence) -> None:
        """The producer's pages went into the tree: what it promises now is the page after them."""
        if producer in self._keys:
            self.announce(producer)

    def withdraw(self, producer: Sequence) -> None:
        key = self._keys.pop(producer, None)
        if key is not None:
            del self._producers[key]

    def find(self, sequence: Sequence, cached_pages: int, usable_pages: int) -> tuple[Sequence, int] | None:
        """Who computes the next page that the choice needs, and how many leading pages both have in common."""
        if cached_pages >= usable_pages:
            return None
        producer = self._producers.get(self._key(sequence, cached_pages))
        if producer is None:
            return None
        shared = self._shared_pages(sequence.tokens, producer.tokens, usable_pages)
        return (producer, shared) if shared > cached_pages else None

    def _key(self, sequence: Sequence, page: int) -> Key:
        ids = sequence.tokens[page * self._page_size : (page + 1) * self._page_size]
        return sequence.request.message.namespace, page, ids.tobytes()

    def _shared_pages(self, left: "array[int]", right: "array[int]", limit: int) -> int:
        size = self._page_size
        low, high = 0, min(limit, len(right) // size)
        while low < high:
            middle = (low + high + 1) // 2
            if left[low * size : middle * size] == right[low * size : middle * size]:
                low = middle
            else:
                high = middle - 1
        return low


def is_worth_waiting_for(producer: Sequence, shared_pages: int, page_size: int, step: int) -> bool:
    """True while the producer brings the first `shared_pages` nearer in every step (this one is `step`)."""
    advances = producer.last_step == step or producer.planned >= shared_pages * page_size
    runs = producer.state in (State.PREFILLING, State.DECODING) and not producer.recalled
    return runs and advances and producer.tree_pages < shared_pages
