"""Guesses at what comes next, from the choice's own text."""

from array import array

FIRST_TRUST = 0.5
MOST_TRUST = 0.99
LEARNING = 0.15
"""Weight of the newest outcome in a choice's trust."""

LONGEST_INDEX = 32_768
"""Ids of a prompt that are looked through at first: so many take a few milliseconds."""


class NgramIndex:
    """Where each pair of ids in a text was seen last, the newest pair aside. Keeps up with the text as it grows."""

    __slots__ = ("_indexed", "_last")

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._indexed = 0

    def continuation(self, tokens: "array[int]", count: int) -> list[int]:
        """`count` ids that followed the last time that the two newest ids stood together; none if they never did.

        A text that repeats itself is continued beyond its end.
        """
        newest = len(tokens) - 1
        if newest < 1:
            return []
        last = self._last
        first = max(1, self._indexed, newest - LONGEST_INDEX)
        earlier = tokens[first - 1]
        for position, token in enumerate(tokens[first:newest], first):
            last[earlier << 32 | token] = position
            earlier = token
        self._indexed = newest
        found = last.get(earlier << 32 | tokens[newest])
        if found is None:
            return []
        ids = tokens[found + 1 : found + 1 + count].tolist()
        period = len(ids)
        while len(ids) < count:
            ids.append(ids[-period])
        return ids


class DraftState:
    """What speculation knows about one choice: `trust` is the share of its guesses that come true."""

    __slots__ = ("guess", "index", "trust")

    def __init__(self) -> None:
        self.index = NgramIndex()
        self.trust = FIRST_TRUST
        self.guess: list[int] = []

    def learn(self, drawn: list[int]) -> None:
        """Judges the guess by what was drawn; ids beyond the first that differs were never at issue."""
        for guessed, token in zip(self.guess, drawn, strict=False):
            self.trust = min(MOST_TRUST, self.trust + LEARNING * ((guessed == token) - self.trust))
            if guessed != token:
                break
