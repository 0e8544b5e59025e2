"""Speculation by n-grams: what may come next is looked up in the choice's own text, computed beside the next token, and
kept as far as it is what would have been drawn anyway."""

import math

from scheduler.ngrams import DraftState
from scheduler.sequence import Sequence


class StepCost:
    """What a further token in a step costs, as a share of what tokens cost that come one by one: a line through what
    recent steps were seen to take. Old steps fade, so it is the line at the numbers of tokens that are usual now."""

    def __init__(self) -> None:
        self._usual = 4.0
        self._fade = 0.98
        self._fixed = self._usual  # what a step takes before its first token, in tokens
        self._weight = self._tokens = self._us = self._tokens_us = self._tokens_squared = 0.0

    def price(self, rows: int) -> float:
        """A token beside those of so many rows, by what each of theirs costs: between 0 and 1."""
        return rows / (self._fixed + rows)

    def observe(self, tokens: int, step_us: int) -> None:
        """A step without prompts; 0 is an executor without a clock."""
        if not step_us:
            return
        fade = self._fade
        self._weight = self._weight * fade + 1
        self._tokens = self._tokens * fade + tokens
        self._us = self._us * fade + step_us
        self._tokens_us = self._tokens_us * fade + tokens * step_us
        self._tokens_squared = self._tokens_squared * fade + tokens * tokens
        mean_tokens, mean_us = self._tokens / self._weight, self._us / self._weight
        spread = self._tokens_squared / self._weight - mean_tokens**2
        if self._weight < 10 or spread < 0.5:
            # Nothing to see: it would never be tried again if what was seen last forbade it.
            self._fixed += (self._usual - self._fixed) / 100
            return
        slope = (self._tokens_us / self._weight - mean_tokens * mean_us) / spread
        fixed = (mean_us - slope * mean_tokens) / slope if slope > 0 else math.inf
        self._fixed = min(max(fixed, 0.25), 64.0)


class Speculation:
    """Decides how many ids of a guess are worth computing: one more as long as it is likelier to come true than what it
    costs. `most` is the longest draft of one row; 0 is no speculation."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.cost = StepCost()
        self.drafted_tokens = 0
        self.accepted_tokens = 0

    @property
    def enabled(self) -> bool:
        return self._most > 0

    def draft(self, sequence: Sequence, rows: int, room: int) -> list[int]:
        """The next ids of the choice as far as they are worth it in a step of so many rows, at most `room`.

        Guesses that are not are judged, too: a choice whose text begins to repeat is trusted again.
        """
        state = sequence.draft_state
        if state is None:
            state = sequence.draft_state = DraftState()
        state.guess = state.index.continuation(sequence.tokens, self._most)
        if not state.guess:
            return []
        price = self.cost.price(rows)
        count = int(math.log(price) / math.log(state.trust)) if state.trust > price else 0
        return state.guess[: max(0, min(count, room))]

    def verified(self, sequence: Sequence, draft: list[int], drawn: list[int]) -> None:
        """What was drawn of the choice: the accepted ids of the draft, and one more."""
        if draft:
            self.drafted_tokens += len(draft)
            self.accepted_tokens += len(drawn) - 1
        if sequence.draft_state is not None:
            sequence.draft_state.learn(drawn)
            sequence.draft_state.guess = []
