"""The model's vocabulary as xgrammar needs it, alike in every process."""

import xgrammar

from runtime.vocabulary import Vocabulary


def tokenizer_info(vocabulary: Vocabulary, vocab_size: int, eos_token_ids: tuple[int, ...]) -> xgrammar.TokenizerInfo:
    """Control tokens begin with a byte that no text holds: a grammar of text can't be met by them. Structural tags name
    them as tokens, free text between tags may hold them, and each state knows its end ids."""
    tokens = [(b"\xff" if vocabulary.is_special(id) else b"") + vocabulary.token_bytes(id) for id in range(vocab_size)]
    ends = [id for id in eos_token_ids if id < vocab_size] or sorted(vocabulary.special_ids)[:1] or [0]
    return xgrammar.TokenizerInfo(
        tokens, xgrammar.VocabType.RAW, vocab_size=vocab_size, stop_token_ids=ends, add_prefix_space=False
    )
