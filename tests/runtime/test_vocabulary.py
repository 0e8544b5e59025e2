"""Token bytes against the tokenizers library: byte-level and SentencePiece vocabularies, and hostile files."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from runtime.vocabulary import Vocabulary, byte_level_alphabet

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.fixture(scope="module")
def byte_level(tiny_llama_dir: Path) -> tuple[Vocabulary, Tokenizer]:
    file = tiny_llama_dir / "tokenizer.json"
    return Vocabulary.load(file), Tokenizer.from_file(str(file))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> tuple[Vocabulary, Tokenizer]:
    """As Llama 2 has it: byte fallback, U+2581 for spaces, one leading space stripped."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "é", "ab", "▁▁"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: id for id, piece in enumerate(pieces)},
            merges=[("a", "b"), ("▁", "a"), ("▁", "▁")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.add_tokens(["▁raw"])
    file = tmp_path_factory.mktemp("sentencepiece") / "tokenizer.json"
    tokenizer.save(str(file))
    return Vocabulary.load(file), tokenizer


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(text=TEXTS)
@pytest.mark.parametrize("which", ["byte_level", "sentencepiece"])
def test_the_bytes_of_a_text_s_tokens_are_the_text(which: str, text: str, request: pytest.FixtureRequest) -> None:
    vocabulary, tokenizer = request.getfixturevalue(which)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert b"".join(vocabulary.token_bytes(id) for id in ids) == text.encode()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(data=st.data())
def test_bytes_decode_as_the_library_decodes(data: st.DataObject, byte_level: tuple[Vocabulary, Tokenizer]) -> None:
    vocabulary, tokenizer = byte_level
    ids = data.draw(st.lists(st.integers(0, vocabulary.size - 1), max_size=20))
    joined = b"".join(vocabulary.token_bytes(id) for id in ids)
    assert joined.decode("utf-8", "replace") == tokenizer.decode(ids, skip_special_tokens=False)


def test_kinds_and_leading_spaces(
    byte_level: tuple[Vocabulary, Tokenizer], sentencepiece: tuple[Vocabulary, Tokenizer]
) -> None:
    assert (byte_level[0].kind, byte_level[0].strips_leading_space) == ("byte_level", False)
    assert (sentencepiece[0].kind, sentencepiece[0].strips_leading_space) == ("sentencepiece", True)


def test_special_and_added_tokens(sentencepiece: tuple[Vocabulary, Tokenizer]) -> None:
    vocabulary, tokenizer = sentencepiece
    start, raw = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("▁raw")
    assert start is not None and raw is not None
    assert vocabulary.special_ids == {start}
    assert vocabulary.special_tokens() == {"<s>": start}
    assert (vocabulary.is_special(start), vocabulary.is_special(raw)) == (True, False)
    assert (vocabulary.is_added(raw), vocabulary.is_added(1)) == (True, False)
    assert vocabulary.token_bytes(raw) == "▁raw".encode()  # an added token is its text, no piece
    assert vocabulary.token_bytes(vocabulary.id_of("<0xE2>") or -1) == b"\xe2"


def test_a_token_s_id_is_found_by_its_text(byte_level: tuple[Vocabulary, Tokenizer]) -> None:
    vocabulary, tokenizer = byte_level
    assert vocabulary.size == len(vocabulary) == tokenizer.get_vocab_size()
    for id in range(vocabulary.size):
        assert vocabulary.id_of(vocabulary.token(id)) == id == tokenizer.token_to_id(vocabulary.token(id))
    assert vocabulary.id_of("no such token") is None


@pytest.mark.parametrize("id", [-1, 3, 7, 1 << 40])
def test_ids_without_a_token_have_no_bytes(id: int, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 8}}}))
    vocabulary = Vocabulary.load(file)
    assert vocabulary.size == 9
    assert (vocabulary.token(id), vocabulary.token_bytes(id), vocabulary.is_special(id)) == ("", b"", False)


def test_the_alphabet_is_the_library_s() -> None:
    assert set(byte_level_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_level_alphabet().values()) == list(range(256))


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"null", b'{"model": 3}', b'{"model": {"vocab": 3}}', b'{"model": {"vocab": {"a": "x"}}}',
     b'{"model": {"vocab": {"a": -1}}}', b'{"model": {"vocab": {}}, "added_tokens": [3]}', b"\xff\xfe", b"[" * 100_000,
     b'{"model": {"vocab": {"a": 4000000000}}}', b'{"model": {"vocab": {"a": 1e400}}}'],
)  # fmt: skip
def test_what_is_no_tokenizer_is_said_so(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="is not a tokenizer"):
        Vocabulary.load(file)
