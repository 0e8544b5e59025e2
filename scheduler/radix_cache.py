"""The prefix cache: a radix tree over whole pages of token ids, one root per namespace.

An edge holds the ids of one or more pages (as the bytes they travel in, so that comparing is a memcmp) and the pages
that hold their keys and values. A holder locks the node where its prefix ends and thereby every node above it; what
nobody locks can be evicted, least recently used leaves first, from the end of a leaf backwards.
"""

import heapq
from collections.abc import Iterator
from itertools import count

from protocol.ids import TOKEN_BYTES


class Node:
    """One edge of the tree and what hangs below it. `locks` counts the holders at or below this node. A root has no
    pages, and its namespace for a key."""

    __slots__ = ("children", "in_heap", "key", "last_used", "locks", "pages", "parent")

    def __init__(self, key: bytearray, pages: list[int], parent: "Node | None") -> None:
        self.key = key
        self.pages = pages
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.locks = 0
        self.last_used = 0
        self.in_heap = False


class RadixCache:
    """Match, lock, extend, evict. It owns the pages in it; it never frees one itself but hands it to the caller."""

    def __init__(self, page_size: int) -> None:
        self._page_bytes = page_size * TOKEN_BYTES
        self._roots: dict[str, Node] = {}
        self._heap: list[tuple[int, int, Node]] = []
        self._clock = 0
        self._tie = count()
        self.pages = 0
        self.evictable = 0

    def match(self, namespace: str, ids: bytes, limit: int) -> int:
        """How many leading pages of `ids` are here, at most `limit`. Changes nothing."""
        node = self._roots.get(namespace)
        matched, width = 0, self._page_bytes
        while node is not None and matched < limit:
            child = node.children.get(ids[matched * width : (matched + 1) * width])
            if child is None:
                break
            common = self._common_pages(child, ids, matched, limit)
            matched += common
            node = child if common == len(child.pages) else None
        return matched

    def acquire(self, namespace: str, ids: bytes, limit: int) -> tuple[Node, list[int]]:
        """Locks the longest match and returns where it ends and its pages; `release` undoes it."""
        node = self._roots.get(namespace)
        if node is None:
            node = self._roots[namespace] = Node(bytearray(namespace.encode()), [], None)
        pages: list[int] = []
        width = self._page_bytes
        while len(pages) < limit:
            matched = len(pages)
            child = node.children.get(ids[matched * width : (matched + 1) * width])
            if child is None:
                break
            common = self._common_pages(child, ids, matched, limit)
            if common < len(child.pages):
                child = self._split(child, common)
            pages.extend(child.pages)
            node = child
        self._lock(node)
        return node, pages

    def extend(self, tip: Node, key: bytes, pages: list[int]) -> tuple[Node, list[tuple[int, int]]]:
        """Puts whole pages below `tip`, which the caller holds, and moves its lock to the new end.

        Where the tree has a page with the same ids already, that one stays and the caller gives up its own: returned
        as (position in `pages`, page of the tree). The other pages belong to the tree from now on.
        """
        width = self._page_bytes
        done = 0
        replaced: list[tuple[int, int]] = []
        while done < len(pages):
            child = tip.children.get(key[done * width : (done + 1) * width])
            if child is None:
                rest = pages[done:]
                if tip.parent is not None and tip.locks == 1 and not tip.children:
                    # Nobody else's prefix ends here: the edge grows, one node for a whole conversation.
                    tip.key += key[done * width :]
                    tip.pages.extend(rest)
                else:
                    child = Node(bytearray(key[done * width :]), rest, tip)
                    child.locks = 1
                    tip.children[bytes(child.key[:width])] = child
                    tip = child
                self.pages += len(rest)
                break
            common = self._common_pages(child, key, done, len(pages))
            if common < len(child.pages):
                child = self._split(child, common)
            if child.locks == 0:
                self.evictable -= len(child.pages)
            child.locks += 1
            replaced.extend((done + offset, page) for offset, page in enumerate(child.pages))
            done += common
            tip = child
        self._clock += 1
        tip.last_used = self._clock
        return tip, replaced

    def release(self, tip: Node) -> None:
        """The holder of `tip` lets go; what nobody holds any more becomes evictable."""
        self._clock += 1
        node: Node | None = tip
        while node is not None:
            node.locks -= 1
            assert node.locks >= 0
            node.last_used = self._clock
            parent = node.parent
            if node.locks == 0 and parent is not None:
                self.evictable += len(node.pages)
                if not node.children:
                    self._offer(node)
            node = parent
        self._drop_empty_root(tip)

    def evict(self, wanted: int) -> list[int]:
        """Frees up to `wanted` pages, least recently used first, and hands them over."""
        freed: list[int] = []
        while self._heap and len(freed) < wanted:
            stamp, _, node = heapq.heappop(self._heap)
            node.in_heap = False
            if node.locks or node.children or not node.pages:
                continue  # it is offered again when it becomes an unlocked leaf
            if stamp != node.last_used:
                self._offer(node)
                continue
            kept = max(0, len(node.pages) - (wanted - len(freed)))
            freed.extend(node.pages[kept:])
            gone = len(node.pages) - kept
            self.pages -= gone
            self.evictable -= gone
            if kept:
                del node.pages[kept:]
                del node.key[kept * self._page_bytes :]
                self._offer(node)
            else:
                self._remove(node)
        return freed

    def nodes(self) -> Iterator[Node]:
        """Every node, roots included, for the integrity check."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _common_pages(self, node: Node, ids: bytes, offset: int, limit: int) -> int:
        """How many pages of the node's edge equal `ids` from page `offset` on, up to page `limit` of `ids`."""
        width = self._page_bytes
        length = min(len(node.pages), limit - offset)
        start = offset * width
        if node.key[: length * width] == ids[start : start + length * width]:
            return length
        low, high = 0, length - 1  # the first page that differs lies in [low, high]
        while low < high:
            middle = (low + high) // 2
            if node.key[low * width : (middle + 1) * width] == ids[start + low * width : start + (middle + 1) * width]:
                low = middle + 1
            else:
                high = middle
        return low

    def _split(self, node: Node, at: int) -> Node:
        """Cuts the edge after `at` pages; the new upper half has the same holders, who keep pointing at the lower one."""
        width = self._page_bytes
        parent = node.parent
        assert parent is not None and 0 < at < len(node.pages)
        upper = Node(node.key[: at * width], node.pages[:at], parent)
        upper.locks = node.locks
        upper.last_used = node.last_used
        parent.children[bytes(upper.key[:width])] = upper
        node.key = node.key[at * width :]
        node.pages = node.pages[at:]
        node.parent = upper
        upper.children[bytes(node.key[:width])] = node
        return upper

    def _lock(self, tip: Node) -> None:
        self._clock += 1
        node: Node | None = tip
        while node is not None:
            if node.locks == 0:
                self.evictable -= len(node.pages)
            node.locks += 1
            node.last_used = self._clock
            node = node.parent

    def _offer(self, node: Node) -> None:
        """Puts an unlocked leaf into the eviction heap, once; a stale stamp is corrected when it is popped."""
        if not node.in_heap:
            node.in_heap = True
            heapq.heappush(self._heap, (node.last_used, next(self._tie), node))

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[bytes(node.key[: self._page_bytes])]
        node.pages, node.key = [], bytearray()
        if parent.parent is not None and not parent.children and parent.locks == 0:
            self._offer(parent)
        self._drop_empty_root(parent)

    def _drop_empty_root(self, node: Node) -> None:
        """A namespace without pages and holders goes: salts are the clients' to invent."""
        if node.parent is None and not node.children and node.locks == 0:
            del self._roots[node.key.decode()]
