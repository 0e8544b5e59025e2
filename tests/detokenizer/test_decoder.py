import time
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detokenizer.decoder import REPLACEMENT, make_decoder
from detokenizer.pieces import Pieces
from runtime.vocabulary import byte_of_token

NAMES = ["byte_level", "llama", "gemma", "fallback_metaspace", "metaspace", "wordpiece", "word_ends", "words"]
KINDS = {"byte_level": "bytes", "llama": "fallback", "gemma": "fallback"}
many = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
token_numbers = st.lists(st.integers(0, 600), max_size=40)


def ids_of(pieces: Pieces, *tokens: str) -> list[int]:
    ids = {token: pieces.vocabulary.id_of(token) for token in tokens}
    return [id for token in tokens if (id := ids[token]) is not None]


def decoded(pieces: Pieces, ids: Sequence[int], prompt: Sequence[int] = (), skip: bool = True) -> str:
    decoder = make_decoder(pieces, pieces.hidden_ids(skip, ()), True)
    decoder.prime(prompt)
    return "".join([*(decoder.push(id) for id in ids), decoder.finish()])


@pytest.mark.parametrize("name", NAMES)
def test_the_kind_is_the_exact_one_where_there_is_one(all_pieces: dict[str, Pieces], name: str) -> None:
    assert all_pieces[name].kind == KINDS.get(name, "window")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("skip", [True, False])
def test_any_ids_give_the_text_of_the_tokenizer(all_pieces: dict[str, Pieces], name: str, skip: bool) -> None:
    pieces = all_pieces[name]

    @many
    @given(token_numbers)
    def check(numbers: list[int]) -> None:
        ids = [number % (pieces.vocabulary.size + 3) for number in numbers]
        assert decoded(pieces, ids, skip=skip) == pieces.tokenizer.decode(ids, skip_special_tokens=skip)

    check()


@pytest.mark.parametrize("name", ["byte_level", "llama", "gemma", "fallback_metaspace"])
def test_runs_of_bytes_give_the_text_of_the_tokenizer(all_pieces: dict[str, Pieces], name: str) -> None:
    pieces = all_pieces[name]
    texts = st.sampled_from(["é", "日本", "😀", "a", "\x00", "\u0301"])
    chunks = st.one_of(texts.map(str.encode), st.binary(max_size=3), texts.map(lambda text: text.encode()[:-1]))

    @many
    @given(st.lists(chunks, max_size=8))
    def check(data: list[bytes]) -> None:
        ids = [byte_id(pieces, byte) for byte in b"".join(data)]
        assert decoded(pieces, ids) == pieces.tokenizer.decode(ids)

    check()


def byte_id(pieces: Pieces, byte: int) -> int:
    if pieces.kind == "bytes":
        return pieces.byte_pieces.index(bytes((byte,)))
    return ids_of(pieces, f"<0x{byte:02X}>")[0]


@pytest.mark.parametrize("name", NAMES)
def test_text_behind_a_prompt_is_what_the_whole_adds(all_pieces: dict[str, Pieces], name: str) -> None:
    pieces = all_pieces[name]

    @many
    @given(token_numbers, token_numbers)
    def check(prompt_numbers: list[int], numbers: list[int]) -> None:
        prompt = [number % pieces.vocabulary.size for number in prompt_numbers]
        ids = [number % pieces.vocabulary.size for number in numbers]
        if pieces.has_byte_runs:  # a run across the border has tests of its own
            prompt = [id for id in prompt if byte_of_token(pieces.vocabulary.token(id)) is None]
        before = pieces.tokenizer.decode(prompt)
        whole = pieces.tokenizer.decode(prompt + ids)
        text = decoded(pieces, ids, prompt)
        assert whole in (before + text, before.removesuffix(REPLACEMENT) + text)

    check()


@pytest.mark.parametrize("name", ["byte_level", "llama", "gemma"])
def test_a_character_that_the_prompt_began_belongs_to_the_output(all_pieces: dict[str, Pieces], name: str) -> None:
    pieces = all_pieces[name]
    data = [byte_id(pieces, byte) for byte in "é😀".encode()]
    assert decoded(pieces, data[4:], data[:4]) == "😀"
    assert decoded(pieces, [], data[:4]) == ""
    hello = ids_of(pieces, "Hello")
    assert decoded(pieces, hello, data[:4]) == "Hello"


def test_a_broken_run_shows_the_bytes_of_the_output_alone(all_pieces: dict[str, Pieces]) -> None:
    pieces = all_pieces["llama"]
    run = [byte_id(pieces, byte) for byte in b"\xc3\xa9\xff"]
    assert decoded(pieces, run[2:], run[:2]) == REPLACEMENT
    assert decoded(pieces, run[1:], run[:1]) == 2 * REPLACEMENT


def test_only_the_first_space_of_a_text_is_stripped(all_pieces: dict[str, Pieces]) -> None:
    pieces = all_pieces["llama"]
    ids = ids_of(pieces, "▁Hello", "▁Hello")
    assert decoded(pieces, ids) == "Hello Hello"
    assert decoded(pieces, ids, ids_of(pieces, "a▁b")) == " Hello Hello"


@pytest.mark.parametrize("name", ["byte_level", "llama"])
def test_no_character_is_shown_before_its_last_byte(all_pieces: dict[str, Pieces], name: str) -> None:
    pieces = all_pieces[name]
    decoder = make_decoder(pieces, frozenset(), True)
    for byte in "😀".encode()[:3]:
        assert decoder.push(byte_id(pieces, byte)) == ""
        assert decoder.open


def test_special_tokens_do_not_interrupt_a_character(all_pieces: dict[str, Pieces]) -> None:
    pieces = all_pieces["byte_level"]
    first, last = (byte_id(pieces, byte) for byte in "é".encode())
    end = ids_of(pieces, "<|end|>")
    assert decoded(pieces, [first, *end, last]) == "é"
    assert decoded(pieces, [first, *end, last], skip=False) == f"{REPLACEMENT}<|end|>{REPLACEMENT}"


def test_visible_special_tokens_are_shown(all_pieces: dict[str, Pieces]) -> None:
    pieces = all_pieces["byte_level"]
    decoder = make_decoder(pieces, pieces.hidden_ids(True, ("<think>",)), True)
    assert "".join(map(decoder.push, ids_of(pieces, "<think>", "<|end|>", "Hello"))) == "<think>Hello"


def test_spaces_between_special_tokens(all_pieces: dict[str, Pieces]) -> None:
    pieces = all_pieces["words"]
    ids = ids_of(pieces, "Hello", "<think>", "</think>", "world")
    for spaces, text in [(True, "Hello <think> </think> world"), (False, "Hello <think></think> world")]:
        decoder = make_decoder(pieces, frozenset(), spaces)
        assert "".join([*map(decoder.push, ids), decoder.finish()]) == text


@pytest.mark.parametrize("name", NAMES)
def test_the_cost_is_linear(all_pieces: dict[str, Pieces], name: str) -> None:
    pieces = all_pieces[name]
    bad = {"byte_level": lambda: byte_id(pieces, 0x98), "fallback_metaspace": lambda: byte_id(pieces, 0xE2)}
    broken = bad.get(
        name, lambda: ids_of(pieces, REPLACEMENT)[0] if not pieces.has_byte_runs else byte_id(pieces, 0xE2)
    )()
    began = time.thread_time()
    text = decoded(pieces, [broken] * 20_000)
    assert time.thread_time() - began < 2.0  # quadratic: minutes
    assert text.count(REPLACEMENT) == 20_000 if name != "word_ends" else text
