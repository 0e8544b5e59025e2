"""How a vocabulary marks a text whose middle is to be filled in (https://arxiv.org/abs/2207.14255)."""

from dataclasses import dataclass

from runtime.engine_config import InfillFormat
from runtime.vocabulary import Vocabulary


@dataclass(frozen=True)
class Marks:
    """Tokens of one family of models. `middle` is None where the answer begins behind the prefix; `ends` are further tokens
    that end a filled middle."""

    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False
    ends: tuple[str, ...] = ()


KNOWN = (
    Marks(
        "<|fim_prefix|>",  # Qwen, CodeGemma, Granite
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ends=("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>", "<|endoftext|>", "<|end_of_text|>"),
    ),
    Marks(
        "<fim_prefix>",  # StarCoder, Stable Code, Granite Code
        "<fim_suffix>",
        "<fim_middle>",
        ends=("<fim_pad>", "<repo_name>", "<file_sep>", "<|endoftext|>"),
    ),
    Marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ends=("<fim-pad>", "<|endoftext|>")),  # SantaCoder
    Marks("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),  # Code Llama
    Marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    Marks("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True),  # Seed-Coder
    Marks("[PREFIX]", "[SUFFIX]", None, suffix_first=True),  # Codestral
)


def find_infill(vocabulary: Vocabulary) -> InfillFormat | None:
    """The first family whose marks are all tokens of the vocabulary."""
    for marks in KNOWN:
        prefix, suffix = vocabulary.id_of(marks.prefix), vocabulary.id_of(marks.suffix)
        middle = None if marks.middle is None else vocabulary.id_of(marks.middle)
        if prefix is None or suffix is None or (middle is None and marks.middle is not None):
            continue
        ordered = (marks.suffix, marks.prefix) if marks.suffix_first else (marks.prefix, marks.suffix)
        ends = [id for id in map(vocabulary.id_of, marks.ends) if id is not None]
        return InfillFormat(
            prefix=prefix,
            suffix=suffix,
            middle=middle,
            suffix_first=marks.suffix_first,
            end_ids=(prefix, suffix, *(() if middle is None else (middle,)), *ends),
            marks=ordered if marks.middle is None else (*ordered, marks.middle),
        )
    return None
