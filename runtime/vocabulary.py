"""A tokenizer.json's vocabulary as data: the text and the exact bytes of each token, and which tokens are special.

A token's bytes are what it adds to the output inside a text. Byte-level BPE writes bytes as printable characters (GPT-2's
table); SentencePiece models write a space as U+2581 and bytes without a token as `<0x0A>`. A decoder may still strip
what begins a text (`strips_leading_space`); that is no property of a token and left to the detokenizer.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

# An order of magnitude above the largest vocabularies; a hostile id must not size a list.
_LARGEST_ID = 1 << 22

VocabularyKind = Literal["byte_level", "sentencepiece", "wordpiece", "plain"]


class Vocabulary:
    """Tokens by id. Ids that no token has (gaps, padding of the embedding) have no bytes and the empty text."""

    def __init__(
        self,
        tokens: dict[int, str],
        added: dict[int, tuple[str, bool]],
        kind: VocabularyKind,
        *,
        strips_leading_space: bool,
    ) -> None:
        self.kind = kind
        self.strips_leading_space = strips_leading_space
        self.size = 1 + max((*tokens, *added), default=-1)
        self._tokens = [""] * self.size
        for id, token in tokens.items():
            self._tokens[id] = token
        for id, (token, _) in added.items():
            self._tokens[id] = token
        self._added = frozenset(added)
        self.special_ids = frozenset(id for id, (_, special) in added.items() if special)
        self._bytes: list[bytes | None] = [None] * self.size
        self._id_of = {token: id for id, token in tokens.items()} | {token: id for id, (token, _) in added.items()}
        self._decode: Callable[[str], bytes] = _DECODERS[kind]

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        """Reads a tokenizer.json; ValueError if it is not one."""
        try:
            document = json.loads(Path(path).read_bytes())
            model = document["model"]
            vocabulary = model["vocab"]
            if isinstance(vocabulary, dict):
                tokens = {int(id): token for token, id in vocabulary.items()}
            else:
                tokens = {id: entry[0] for id, entry in enumerate(vocabulary)}
            added = {
                int(entry["id"]): (entry["content"], bool(entry.get("special", False)))
                for entry in document.get("added_tokens") or ()
            }
        except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} is not a tokenizer.json: {type(error).__name__}: {error}") from None
        ids = (*tokens, *added)
        if min(ids, default=0) < 0 or max(ids, default=0) > _LARGEST_ID:
            raise ValueError(f"{path} is not a tokenizer.json: its token ids are not between 0 and {_LARGEST_ID}")
        steps = list(decoder_steps(document.get("decoder")))
        return cls(tokens, added, _kind(steps), strips_leading_space=_strips(steps))

    def __len__(self) -> int:
        return self.size

    def token(self, id: int) -> str:
        """The token as the vocabulary writes it (`Ġhello`, `▁hello`, `<|im_end|>`); "" if the id has none."""
        return self._tokens[id] if 0 <= id < self.size else ""

    def token_bytes(self, id: int) -> bytes:
        """The exact bytes that the token stands for; they need not be valid UTF-8 alone. b"" if the id has no token."""
        if not 0 <= id < self.size:
            return b""
        known = self._bytes[id]
        if known is None:
            token = self._tokens[id]
            known = token.encode("utf-8", "surrogatepass") if id in self._added else self._decode(token)
            self._bytes[id] = known
        return known

    def is_special(self, id: int) -> bool:
        """True for control tokens, which are no text (beginning of sequence, end of turn, ...)."""
        return id in self.special_ids

    def is_added(self, id: int) -> bool:
        """True for tokens that are matched in a text before it is split (all special ones are)."""
        return id in self._added

    def id_of(self, text: str) -> int | None:
        """The id of a token written as in the vocabulary, or None."""
        return self._id_of.get(text)

    def special_tokens(self) -> dict[str, int]:
        """Text and id of every special token."""
        return {self._tokens[id]: id for id in sorted(self.special_ids)}


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's table from printable character to byte: printable Latin-1 bytes are themselves, the rest follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return alphabet | {chr(256 + position): byte for position, byte in enumerate(others)}


_BYTE_OF_CHARACTER = byte_level_alphabet()
_BYTE_TOKEN_LENGTH = len("<0x00>")


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a token in that alphabet; any other text's are its UTF-8."""
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode("utf-8", "surrogatepass")


def byte_of_token(token: str) -> int | None:
    """The byte that a byte-fallback token (`<0x0A>`) stands for, or None for any other token."""
    if len(token) != _BYTE_TOKEN_LENGTH or not token.startswith("<0x") or not token.endswith(">"):
        return None
    try:
        return int(token[3:5], 16)
    except ValueError:
        return None


def _sentencepiece(token: str) -> bytes:
    byte = byte_of_token(token)
    return token.replace("\u2581", " ").encode("utf-8", "surrogatepass") if byte is None else bytes((byte,))


def _wordpiece(token: str) -> bytes:
    return (token[2:] if token.startswith("##") else " " + token).encode("utf-8", "surrogatepass")


def _plain(token: str) -> bytes:
    return token.encode("utf-8", "surrogatepass")


_DECODERS: dict[VocabularyKind, Callable[[str], bytes]] = {
    "byte_level": byte_level_bytes,
    "sentencepiece": _sentencepiece,
    "wordpiece": _wordpiece,
    "plain": _plain,
}


def decoder_steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The steps of a tokenizer.json's decoder in order, sequences unrolled."""
    if decoder is None:
        return
    if decoder.get("type") == "Sequence":
        for step in decoder.get("decoders", ()):
            yield from decoder_steps(step)
    else:
        yield decoder


def _kind(steps: list[dict[str, Any]]) -> VocabularyKind:
    types = {step.get("type") for step in steps}
    if "ByteLevel" in types:
        return "byte_level"
    if types & {"ByteFallback", "Metaspace", "Replace"}:
        return "sentencepiece"
    return "wordpiece" if "WordPiece" in types else "plain"


def _strips(steps: list[dict[str, Any]]) -> bool:
    for step in steps:
        if step.get("type") == "Strip" and step.get("start"):
            return True
        if step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            return True
    return False
