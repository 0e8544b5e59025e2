"""Grammar masks: bits of int32 words to -inf."""

import numpy
import torch
from numpy.typing import NDArray


def parse_words(words: bytes, rows: int) -> NDArray[numpy.int32]:
    """Mask words of `GrammarMasks`: [rows, words per row]."""
    return numpy.frombuffer(words, "<i4").reshape(rows, -1)


def apply_mask(logits: torch.Tensor, draws: torch.Tensor, words: torch.Tensor) -> None:
    """Sets logits [all draws, vocab] of the given draws [masked] to -inf where a bit of words [masked, words] is unset."""
    logits[draws] = logits[draws].masked_fill_(~allowed_ids(words, logits.shape[1]), -torch.inf)


def allowed_ids(words: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The bits of words [masked, words] by token id: [masked, vocab] bool.

    Ids past the last word are not allowed: the grammar's vocabulary is the tokenizer's, the model's may be padded.
    """
    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    bits = ((words[:, :, None] >> shifts) & 1).flatten(1).bool()
    allowed = torch.zeros(len(words), vocab_size, dtype=torch.bool, device=words.device)
    known = min(vocab_size, bits.shape[1])
    allowed[:, :known] = bits[:, :known]
    return allowed
