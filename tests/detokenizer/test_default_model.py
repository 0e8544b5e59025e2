"""The default model's own tokenizer: real text of many scripts, and any ids."""

import random
from pathlib import Path

import pytest

from detokenizer.detokenizer import Detokenizer
from detokenizer.pieces import Pieces
from protocol.ids import pack_ids
from protocol.outputs import Admitted, Finish, SequenceOutput
from runtime.environment import read_environment
from runtime.tokenizer_loading import tokenizer_file_for

TEXT = "Grüße, 世界! 👩‍👩‍👧‍👦 Привет — ﷽ 𝒳 é ก็ \u200d\n\tdef f(x): return x**2  # 🇺🇳\r\n" * 3


@pytest.fixture(scope="module")
def pieces(smollm2_gguf: Path) -> Pieces:
    return Pieces.load(tokenizer_file_for(smollm2_gguf, read_environment().cache_folder))


def streamed(pieces: Pieces, ids: list[int], prompt: list[int]) -> list[str]:
    detokenizer = Detokenizer(pieces)
    detokenizer.open(Admitted("0-a", 0, len(prompt), prompt_tail=pack_ids(prompt)))
    for step in [[id] for id in ids]:
        detokenizer.add(SequenceOutput("0-a", 0, 0, pack_ids(step)))
    detokenizer.add(SequenceOutput("0-a", 0, 0, b"", Finish("length")))
    texts, _ = detokenizer.take()
    return [output.text for output in texts[0]]


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_real_text_comes_out_whole_and_without_a_broken_character(pieces: Pieces, cut: int) -> None:
    ids = pieces.tokenizer.encode(TEXT, add_special_tokens=False).ids
    deltas = streamed(pieces, ids[cut:], ids[:cut])
    assert not any("\ufffd" in delta for delta in deltas)
    before = pieces.tokenizer.decode(ids[:cut]).rstrip("\ufffd")
    assert before + "".join(deltas) == TEXT


@pytest.mark.parametrize("seed", range(20))
def test_any_ids_give_the_text_of_the_tokenizer(pieces: Pieces, seed: int) -> None:
    source = random.Random(seed)
    ids = [source.choice([source.randrange(49152), source.randrange(300)]) for _ in range(200)]
    assert "".join(streamed(pieces, ids, [])) == pieces.tokenizer.decode(ids)
