"""Counting the tokens of one call, as billing would."""

from typing import Any

from protocol.outputs import Admitted, TextOutput


class Tally:
    """Tokens of all prompts and choices. `copies`: a greedy answer given n times counts n times."""

    def __init__(self, copies: int = 1) -> None:
        self._copies = copies
        self._prompt_tokens = 0
        self._completion: dict[tuple[int, int], int] = {}
        self._reasoning: dict[tuple[int, int], int] = {}
        self._cached: dict[int, int] = {}
        self._predictions: dict[tuple[int, int, int], tuple[int, int]] = {}

    def admit(self, admitted: list[Admitted]) -> None:
        self._prompt_tokens = sum(one.prompt_tokens for one in admitted)

    def count(self, position: int, output: TextOutput) -> None:
        key = (position, output.index)
        self._completion[key] = output.completion_tokens
        if output.reasoning_tokens or key in self._reasoning:  # a marker that is not whole yet counts as reasoning
            self._reasoning[key] = output.reasoning_tokens
        if output.cached_tokens:
            # The first word counts: after a recovery the prompt is found in the cache because of ourselves.
            self._cached.setdefault(position, output.cached_tokens)
        if output.prediction is not None:
            # The counts of an attempt begin at none: what was computed before a recovery counts, too.
            self._predictions[(*key, output.attempt)] = output.prediction

    @property
    def prompt_tokens(self) -> int:
        return self._prompt_tokens

    @property
    def completion_tokens(self) -> int:
        return sum(self._completion.values()) * self._copies

    def usage(self) -> dict[str, Any]:
        details = {"reasoning_tokens": sum(self._reasoning.values()) * self._copies}
        if self._predictions:
            accepted, rejected = (sum(counts) for counts in zip(*self._predictions.values(), strict=True))
            details |= {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self._prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
            "completion_tokens_details": details,
        }
