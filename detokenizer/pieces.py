"""What each token adds to a text, read off the tokenizer once, and which of the decoders below applies.

The oracle is `tokenizers.Tokenizer.decode`. Most decoders of the field are one of two: byte-level (a token is bytes,
wherever it stands) and SentencePiece with byte fallback (a token is text, or one byte of a run of bytes). For these the
text is computed exactly and in linear time from tables; every other decoder is asked itself, over a window.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from runtime.tokenizer_loading import load_tokenizer
from runtime.vocabulary import Vocabulary, byte_level_bytes, byte_of_token, decoder_steps

DecoderKind = Literal["bytes", "fallback", "window"]


class Pieces:
    """The tables of one tokenizer, shared by all choices. `byte_pieces` and `text_pieces` are filled by kind.

    `byte_pieces[id]` are the token's bytes (kind "bytes"). `text_pieces[id]` is the token's text, or its byte as an int
    (kind "fallback"). Ids without a token add nothing, as in `Tokenizer.decode`.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        decoder = tokenizer.decoder
        steps = [] if decoder is None else list(decoder_steps(json.loads(decoder.__getstate__())))
        self.kind, self.leading_spaces = _kind(steps)
        self.has_byte_runs = any(step["type"] == "ByteFallback" for step in steps)
        self.byte_pieces: list[bytes] = []
        self.byte_texts: list[str | None] = []
        self.text_pieces: list[str | int] = []
        tokens = [tokenizer.id_to_token(id) or "" for id in range(vocabulary.size)]
        if self.kind == "bytes":
            self.byte_pieces = [byte_level_bytes(token) for token in tokens]
            self.byte_texts = [_whole_text(piece) for piece in self.byte_pieces]
        elif self.kind == "fallback":
            self.text_pieces = [_fallback_piece(token, steps) for token in tokens]
        self._token_texts: dict[int, str] = {}

    @classmethod
    def load(cls, tokenizer_file: str | Path) -> "Pieces":
        return cls(load_tokenizer(tokenizer_file), Vocabulary.load(tokenizer_file))

    def is_byte(self, token_id: int) -> bool:
        """True for the byte tokens (`<0x0A>`) of a byte-fallback vocabulary."""
        return self.has_byte_runs and byte_of_token(self.vocabulary.token(token_id)) is not None

    def token_text(self, token_id: int) -> str:
        """The token alone as text, special or not; bytes that are no character alone become U+FFFD."""
        text = self._token_texts.get(token_id)
        if text is None:
            text = self.vocabulary.token_bytes(token_id).decode("utf-8", "replace")
            self._token_texts[token_id] = text
        return text

    def hidden_ids(self, skip_special_tokens: bool, visible_special_tokens: Sequence[str]) -> frozenset[int]:
        """Ids that add nothing to the text under these options."""
        if not skip_special_tokens:
            return frozenset()
        if not visible_special_tokens:
            return self.vocabulary.special_ids
        shown = {self.vocabulary.id_of(token) for token in visible_special_tokens}
        return frozenset(id for id in self.vocabulary.special_ids if id not in shown)


def _kind(steps: list[dict[str, Any]]) -> tuple[DecoderKind, int]:
    """The decoder that computes these steps exactly, and how many leading spaces of a text they strip."""
    types = [step["type"] for step in steps]
    if types == ["ByteLevel"]:
        return "bytes", 0
    while types and types[0] == "Replace" and "String" in steps[len(steps) - len(types)]["pattern"]:
        types = types[1:]
    if types == ["ByteFallback", "Fuse"]:
        return "fallback", 0
    if types == ["ByteFallback", "Fuse", "Strip"]:
        strip = steps[-1]
        if strip["content"] == " " and strip["stop"] == 0:
            return "fallback", int(strip["start"])
    return "window", 0


def _whole_text(piece: bytes) -> str | None:
    """The piece's text if it begins and ends at a character's border, else None."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _fallback_piece(token: str, steps: list[dict[str, Any]]) -> str | int:
    for step in steps:
        if step["type"] != "Replace":
            break
        token = token.replace(step["pattern"]["String"], step["content"])
    byte = byte_of_token(token)
    return token if byte is None else byte
