"""Speculation by n-grams: what may come next is looked up in the choice's own text, computed beside the next token, and
kept as far as it is what would have been drawn anyway."""

import math

from scheduler.ngrams import MOST_TRUST, DraftState, Prediction
from scheduler.sequence import Sequence

MARGIN = 1.25
"""Both trust and price are estimates, and a wrong guess holds everybody in the step up."""

USUAL_FIXED = 4.0
"""What a step takes before its first token, in tokens, as long as nobody knows better."""

MOST_FIXED = 16.0
ESTIMATE_WEIGHT = 4.0
"""How much the usual counts beside what was seen, as a variance of tokens per step."""

FADE = 0.98
"""What a step counts beside the next one."""


class StepCost:
    """What a further token in a step costs, as a share of what tokens cost that come one by one: a line through what
    recent steps were seen to take. Old steps fade, so it is the line at the numbers of tokens that are usual now. Where
    these hardly differ the line says little, and other processes have their share in every time: then the usual counts.
    """

    def __init__(self) -> None:
        self._fixed = USUAL_FIXED
        self._weight = self._tokens = self._us = self._tokens_us = self._tokens_squared = 0.0

    def price(self, rows: int) -> float:
        """A token beside those of so many rows, by what each of theirs costs: between 0 and 1."""
        return rows / (self._fixed + rows)

    def observe(self, tokens: int, step_us: int) -> None:
        """A step without prompts; 0 is an executor without a clock."""
        if not step_us:
            return
        self._weight = self._weight * FADE + 1
        self._tokens = self._tokens * FADE + tokens
        self._us = self._us * FADE + step_us
        self._tokens_us = self._tokens_us * FADE + tokens * step_us
        self._tokens_squared = self._tokens_squared * FADE + tokens * tokens
        mean_tokens, mean_us = self._tokens / self._weight, self._us / self._weight
        variance = self._tokens_squared / self._weight - mean_tokens**2
        covariance = self._tokens_us / self._weight - mean_tokens * mean_us
        usual = mean_us / (mean_tokens + USUAL_FIXED)
        slope = (covariance + ESTIMATE_WEIGHT * usual) / (variance + ESTIMATE_WEIGHT)
        fixed = mean_us / slope - mean_tokens if slope > 0 else MOST_FIXED
        self._fixed = min(max(fixed, 0.0), MOST_FIXED)


class Speculation:
    """Decides how many ids of a guess are worth computing: one more as long as it is likelier to come true than what it
    costs, and a quarter. `most` is the longest draft of one row; 0 is no speculation."""

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

        Guesses that are not are judged, too: a choice whose text begins to repeat is trusted again. In a step where no
        guess could be worth it, nobody looks for one.
        """
        price = MARGIN * self.cost.price(rows)
        if price >= MOST_TRUST:
            return []
        state = sequence.draft_state
        if state is None:
            state = sequence.draft_state = DraftState(prediction_of(sequence))
        state.look(sequence.tokens, self._most)
        if not state.guess:
            return []
        count = int(math.log(price) / math.log(state.trust)) if state.trust > price else 0
        return state.guess[: max(0, min(count, room))]

    def verified(self, sequence: Sequence, draft: list[int], drawn: list[int]) -> None:
        """What was drawn of the choice: the accepted ids of the draft, and one more unless one of them was the end."""
        state = sequence.draft_state
        if state is None:
            return
        if draft:
            accepted = sum(guessed == token for guessed, token in zip(draft, drawn, strict=False))
            self.drafted_tokens += len(draft)
            self.accepted_tokens += accepted
            state.count(len(draft), accepted)
        state.learn(drawn)
        state.guess = []


def prediction_of(sequence: Sequence) -> Prediction | None:
    text = sequence.request.predicted
    return Prediction(text, sequence.prompt_length) if text is not None else None


def predicted(sequence: Sequence) -> tuple[int, int] | None:
    """How many ids of the request's prediction were computed for the choice: (accepted, rejected); None without one."""
    if sequence.request.predicted is None:
        return None
    state = sequence.draft_state
    return (0, 0) if state is None else (state.accepted, state.rejected)
