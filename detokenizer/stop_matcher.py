"""Finds where a choice must stop: the first place where its text holds a stop string or a match of a stop regex.

"First" is the match that is complete first, and among those the one that begins first: so it does not depend on how the
text was cut into tokens. Beside the match, a matcher knows how many of the last characters may be the beginning of one;
they are held back.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec
import regex

REGEX_TAIL_CHARACTERS = 2048
"""A regex match begins at most so many characters before the end of the text."""

_LOOKBEHIND_CHARACTERS = 64
_BUDGET_S = 0.05
_BUDGET_PER_PUSH_S = 0.0005


class StopMatch(msgspec.Struct, frozen=True):
    """`start` and `end` are positions in all text that the matcher was given; `matched` the string or pattern."""

    start: int
    end: int
    matched: str


class StopTimeout(Exception):
    """A stop regex has used up its time."""


class StopMatcher(Protocol):
    partial: int
    """Characters at the end of the text that may belong to a match not complete yet."""

    def push(self, text: str) -> StopMatch | None: ...

    def reset(self) -> None:
        """What comes next does not continue what came before (reasoning lies between)."""


class StopStrings:
    """The automaton of Aho and Corasick over a request's stop strings, shared by its choices."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.fallback = [0]
        self.found: list[str | None] = [None]  # the longest stop string that ends in this state
        for string in strings:
            self._add(string)
        self._link()
        self.first_characters = frozenset(self.next[0])

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            following = self.next[state].get(character)
            if following is None:
                following = len(self.next)
                self.next[state][character] = following
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.fallback.append(0)
                self.found.append(None)
            state = following
        if state:
            self.found[state] = string

    def _link(self) -> None:
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self.next[state].items():
                self.fallback[following] = self.step(self.fallback[state], character)
                if self.found[following] is None:
                    self.found[following] = self.found[self.fallback[following]]
                queue.append(following)

    def step(self, state: int, character: str) -> int:
        """The state of the longest suffix that begins a stop string."""
        while True:
            following = self.next[state].get(character)
            if following is not None:
                return following
            if not state:
                return 0
            state = self.fallback[state]


class StringMatcher:
    """One choice's walk through the automaton: constant time per character, whatever the number of strings."""

    def __init__(self, strings: StopStrings) -> None:
        self.partial = 0
        self._strings = strings
        self._state = 0
        self._position = 0

    def push(self, text: str) -> StopMatch | None:
        strings, state = self._strings, self._state
        if not state and strings.first_characters.isdisjoint(text):
            self._position += len(text)
            return None
        for offset, character in enumerate(text, self._position + 1):
            state = strings.step(state, character)
            found = strings.found[state]
            if found is not None:
                return StopMatch(offset - len(found), offset, found)
        self._state = state
        self._position += len(text)
        self.partial = strings.depth[state]
        return None

    def reset(self) -> None:
        self._state = self.partial = 0


class RegexMatcher:
    """One stop regex over a bounded tail of the text, within a time budget that refills with every push.

    `regex` (not `re`) because it can be timed out and can say that the end of a text may begin a match. The pattern sees
    the text as it stands after each token; an empty match does not count.
    """

    def __init__(self, pattern: str) -> None:
        self.partial = 0
        self._source = pattern
        self._pattern = regex.compile(pattern)
        self._tail = ""
        self._tail_start = 0  # position of the tail in the whole text
        self._from = 0  # position where a match may begin
        self._budget_s = _BUDGET_S

    def push(self, text: str) -> StopMatch | None:
        if not text:
            return None
        self._append(text)
        began = time.thread_time()
        try:
            match = self._search()
        except TimeoutError:
            raise StopTimeout(f"the stop regex {self._source!r} took too long") from None
        self._budget_s = min(_BUDGET_S, self._budget_s + _BUDGET_PER_PUSH_S) - (time.thread_time() - began)
        if self._budget_s <= 0:
            raise StopTimeout(f"the stop regex {self._source!r} took too long")
        return match

    def reset(self) -> None:
        self._tail_start += len(self._tail)
        self._from = self._tail_start
        self._tail = ""
        self.partial = 0

    def _append(self, text: str) -> None:
        self._tail += text
        end = self._tail_start + len(self._tail)
        self._from = max(self._from, end - REGEX_TAIL_CHARACTERS)
        surplus = self._from - _LOOKBEHIND_CHARACTERS - self._tail_start
        if surplus > REGEX_TAIL_CHARACTERS:
            self._tail = self._tail[surplus:]
            self._tail_start += surplus

    def _search(self) -> StopMatch | None:
        """The leftmost match; else moves `_from` to where a match may have begun."""
        base = self._tail_start
        for match in self._pattern.finditer(self._tail, self._from - base, timeout=self._budget_s):
            if match.end() > match.start():
                return StopMatch(base + match.start(), base + match.end(), self._source)
        begun = self._pattern.search(self._tail, self._from - base, partial=True, timeout=self._budget_s)
        end = base + len(self._tail)
        self._from = base + begun.start() if begun is not None and begun.partial else end
        self.partial = end - self._from
        return None


class StopMatchers:
    """All matchers of one choice as one."""

    def __init__(self, matchers: Sequence[StopMatcher]) -> None:
        self.partial = 0
        self._matchers = matchers

    def push(self, text: str) -> StopMatch | None:
        matches = [match for matcher in self._matchers if (match := matcher.push(text)) is not None]
        if matches:
            return min(matches, key=lambda match: (match.end, match.start))
        self.partial = max(matcher.partial for matcher in self._matchers)
        return None

    def reset(self) -> None:
        self.partial = 0
        for matcher in self._matchers:
            matcher.reset()


def make_matcher(strings: StopStrings | None, patterns: Sequence[str]) -> StopMatcher | None:
    """The matcher of one choice, None if nothing can stop it. Raises regex.error for a pattern that is none."""
    matchers: list[StopMatcher] = [RegexMatcher(pattern) for pattern in patterns]
    if strings is not None:
        matchers.append(StringMatcher(strings))
    if len(matchers) > 1:
        return StopMatchers(matchers)
    return matchers[0] if matchers else None
