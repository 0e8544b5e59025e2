"""Small tokenizers, one per way of decoding, and a scheduler's side of the link."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from detokenizer.pieces import Pieces
from runtime.vocabulary import byte_level_alphabet

WORDS = ["Hello", "Ġworld", "ĠSTOP", "ĠEND", "STO", "P", "Ġ", "ing", "####"]
TEXTS = [
    "Hello",
    "world",
    "STOP",
    "END",
    "STO",
    "P",
    "é",
    "日本",
    "語",
    "😀",
    "▁",
    "▁▁",
    "▁Hello",
    "▁a",
    "a▁b",
    ".",
    "'s",
    "\ufffd",
]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    return {token: id for id, token in enumerate(dict.fromkeys(tokens))}


def _byte_level() -> Tokenizer:
    alphabet = {byte: character for character, byte in byte_level_alphabet().items()}
    spelled = ["".join(alphabet[byte] for byte in text.encode()) for text in (*TEXTS, "日", "😀😀")]
    broken = ["".join(alphabet[byte] for byte in data) for data in (b"\xf0\x9f", b"\x98\x80", b"a\xe6", b"\x97\xa5b")]
    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary([*alphabet.values(), *WORDS, *spelled, *broken]), merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(steps: list[decoders.Decoder]) -> Tokenizer:
    vocabulary = _vocabulary(["<unk>", *BYTES, *TEXTS])
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _llama() -> Tokenizer:
    return _sentencepiece(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def _gemma() -> Tokenizer:
    return _sentencepiece([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


def _fallback_then_metaspace() -> Tokenizer:
    return _sentencepiece([decoders.ByteFallback(), decoders.Metaspace()])


def _metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *((text, -1.0) for text in TEXTS)], unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _wordpiece() -> Tokenizer:
    tokens = ["[UNK]", *TEXTS, "##ing", "##ly", "##é", ",", "!", "n't", "do"]
    tokenizer = Tokenizer(models.WordPiece(vocab=_vocabulary(tokens), unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _word_ends() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=_vocabulary([*TEXTS, "Hello</w>", "a</w>", "é</w>"]), merges=[]))
    tokenizer.decoder = decoders.BPEDecoder()
    return tokenizer


def _words() -> Tokenizer:
    return Tokenizer(models.WordLevel(vocab=_vocabulary(["<unk>", *TEXTS]), unk_token="<unk>"))


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": _byte_level,
    "llama": _llama,
    "gemma": _gemma,
    "fallback_metaspace": _fallback_then_metaspace,
    "metaspace": _metaspace,
    "wordpiece": _wordpiece,
    "word_ends": _word_ends,
    "words": _words,
}
KINDS = {"byte_level": "bytes", "llama": "fallback", "gemma": "fallback"}


@pytest.fixture(scope="session")
def all_pieces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pieces]:
    folder: Path = tmp_path_factory.mktemp("tokenizers")
    made = {}
    for name, make in MAKERS.items():
        tokenizer = make()
        tokenizer.add_special_tokens(["<|end|>", "<｜標▁識｜>", "<think>", "</think>"])
        tokenizer.add_tokens([AddedToken("<added>"), AddedToken("two words")])
        tokenizer.save(str(folder / f"{name}.json"))
        made[name] = Pieces.load(folder / f"{name}.json")
    return made
