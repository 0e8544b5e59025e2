"""Which pages of the KV pool are free. Page 0 is the executor's scratch page and is never given out."""

from collections.abc import Iterable


class PagePool:
    """A stack of free pages. Whoever takes a page gives it back exactly once: a second return is our own bug."""

    def __init__(self, pages: int) -> None:
        """`pages` counts the scratch page, as `Capacity.pages` does."""
        self.usable = pages - 1
        self._free = list(range(pages - 1, 0, -1))
        self._is_free = bytearray(b"\1" * pages)
        self._is_free[0] = 0

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` pages; the caller has looked at `free`."""
        assert 0 <= count <= len(self._free)
        if count == 1:
            page = self._free.pop()
            self._is_free[page] = 0
            return [page]
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        for page in taken:
            self._is_free[page] = 0
        return taken

    def give(self, pages: Iterable[int]) -> None:
        for page in pages:
            assert page > 0 and not self._is_free[page], f"page {page} was given back twice"
            self._is_free[page] = 1
            self._free.append(page)

    def free_pages(self) -> list[int]:
        """The free pages, for the integrity check."""
        return list(self._free)
