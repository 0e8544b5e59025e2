"""The texts of logprobs: what the scheduler says in ids, as tokens with their exact bytes."""

from array import array
from collections.abc import Sequence

from detokenizer.pieces import Pieces
from protocol.ids import unpack_ids
from protocol.outputs import IdLogprobs, TokenLogprob, TopLogprob


def logprob_texts(pieces: Pieces, entries: Sequence[IdLogprobs]) -> list[TokenLogprob]:
    """One entry per token, in order. A token that is no valid UTF-8 alone keeps its bytes beside its text."""
    return [_with_text(pieces, entry) for entry in entries]


def prompt_logprob_texts(pieces: Pieces, entries: Sequence[IdLogprobs | None]) -> list[TokenLogprob | None]:
    """As `logprob_texts`; the first prompt token has no logprob."""
    return [None if entry is None else _with_text(pieces, entry) for entry in entries]


def _with_text(pieces: Pieces, entry: IdLogprobs) -> TokenLogprob:
    token_bytes = pieces.vocabulary.token_bytes
    logprobs = array("f", entry.top_logprobs)
    top = [
        TopLogprob(pieces.token_text(id), id, logprob, token_bytes(id))
        for id, logprob in zip(unpack_ids(entry.top_ids), logprobs, strict=True)
    ]
    return TokenLogprob(pieces.token_text(entry.id), entry.id, entry.logprob, token_bytes(entry.id), entry.rank, top)
