"""Counts of a call."""

from http_frontend.usage import Tally
from protocol.outputs import TextOutput


def output(attempt: int, tokens: int, prediction: tuple[int, int]) -> TextOutput:
    return TextOutput("0-a", attempt, 0, "", b"", completion_tokens=tokens, prediction=prediction)


def test_what_was_predicted_before_a_recovery_counts_too() -> None:
    """A scheduler that takes a request over begins to count at none."""
    tally = Tally()
    for one in (output(0, 3, (2, 0)), output(0, 9, (7, 1)), output(1, 10, (0, 0)), output(1, 14, (3, 2))):
        tally.count(0, one)
    details = tally.usage()["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (10, 3)
    assert tally.completion_tokens == 14
