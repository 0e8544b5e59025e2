"""Guesses at what comes next, from the choice's own text."""

from array import array
from bisect import bisect_right

FIRST_TRUST = 0.5
MOST_TRUST = 0.99
LEARNING = 0.15
"""Weight of the newest outcome in a choice's trust."""

LONGEST_INDEX = 32_768
"""Ids of a prompt or a prediction that are looked through at once: so many take some milliseconds and megabytes."""


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


class PredictedText:
    """What a request's answers are expected to be. Its pairs are looked through when an answer first parts from it, and
    once for all choices."""

    __slots__ = ("_places", "ids")

    def __init__(self, ids: "array[int]") -> None:
        self.ids = ids
        self._places: dict[int, list[int]] | None = None

    def after(self, earlier: int, token: int, place: int) -> int | None:
        """Where the text goes on behind these two ids: behind `place` if it can be. None if they never stand together."""
        if self._places is None:
            self._places = {}
            ids = self.ids[:LONGEST_INDEX]
            for position in range(1, len(ids)):
                self._places.setdefault(ids[position - 1] << 32 | ids[position], []).append(position + 1)
        places = self._places.get(earlier << 32 | token)
        return None if places is None else places[bisect_right(places, place) % len(places)]


class Prediction:
    """How far one answer has come in the text that it is expected to be.

    Where they part, the place is found again by the next pair of ids that both have, after the last place if it can be.
    """

    __slots__ = ("_follows", "_place", "_seen", "_text")

    def __init__(self, text: PredictedText, prompt_length: int) -> None:
        self._text = text
        self._seen = prompt_length
        self._place = 0
        self._follows = True

    def continuation(self, tokens: "array[int]", count: int) -> list[int]:
        """What comes next in it: at most `count` ids, none where the answer is somewhere else."""
        ids = self._text.ids
        for position in range(self._seen, len(tokens)):
            token = tokens[position]
            if self._follows and self._place < len(ids) and ids[self._place] == token:
                self._place += 1
                continue
            found = self._text.after(tokens[position - 1], token, self._place)
            self._follows = found is not None
            if found is not None:
                self._place = found
        self._seen = len(tokens)
        return ids[self._place : self._place + count].tolist() if self._follows else []


class DraftState:
    """What speculation knows about one choice: `trust` is the share of its guesses that come true."""

    __slots__ = ("_index", "_prediction", "accepted", "guess", "predicted", "rejected", "trust")

    def __init__(self, prediction: Prediction | None = None) -> None:
        self._index = NgramIndex()
        self._prediction = prediction
        self.trust = FIRST_TRUST
        self.guess: list[int] = []
        self.predicted = False
        self.accepted = self.rejected = 0

    def look(self, tokens: "array[int]", count: int) -> None:
        """Makes a guess at the next `count` ids; an empty one where nothing is known."""
        if self._prediction is not None:
            self.guess = self._prediction.continuation(tokens, count)
            self.predicted = bool(self.guess)
            if self.predicted:
                return
        self.guess = self._index.continuation(tokens, count)

    def count(self, drafted: int, accepted: int) -> None:
        """What became of a draft; only those of a prediction are counted."""
        if self.predicted:
            self.accepted += accepted
            self.rejected += drafted - accepted

    def learn(self, drawn: list[int]) -> None:
        """Judges the guess by what was drawn; ids beyond the first that differs were never at issue."""
        for guessed, token in zip(self.guess, drawn, strict=False):
            self.trust = min(MOST_TRUST, self.trust + LEARNING * ((guessed == token) - self.trust))
            if guessed != token:
                break
