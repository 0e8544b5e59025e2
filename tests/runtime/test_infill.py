"""Which vocabularies can fill a middle, and in which order they want to be asked."""

import pytest

from runtime.engine_config import InfillFormat
from runtime.infill import KNOWN, Marks, find_infill
from runtime.vocabulary import Vocabulary


def vocabulary(*tokens: str) -> Vocabulary:
    added = {id: (token, True) for id, token in enumerate(tokens, start=1)}
    return Vocabulary({0: "a"}, added, "plain", strips_leading_space=False)


def test_the_marks_and_what_ends_a_middle() -> None:
    found = find_infill(
        vocabulary("<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|file_sep|>")
    )
    marks = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    assert found == InfillFormat(2, 4, 3, False, (2, 4, 3, 5, 1), marks)


def test_a_suffix_that_comes_first_and_no_middle_mark() -> None:
    found = find_infill(vocabulary("[PREFIX]", "[SUFFIX]"))
    assert found == InfillFormat(1, 2, None, True, (1, 2), ("[SUFFIX]", "[PREFIX]"))


@pytest.mark.parametrize("marks", KNOWN, ids=lambda marks: str(marks.prefix))
def test_every_family_needs_all_its_marks(marks: Marks) -> None:
    needed = [mark for mark in (marks.prefix, marks.suffix, marks.middle) if mark is not None]
    assert find_infill(vocabulary(*needed)) is not None
    for missing in needed:
        assert find_infill(vocabulary(*(mark for mark in needed if mark != missing))) is None
