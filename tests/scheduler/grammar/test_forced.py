import pytest
from tokenizers import Tokenizer

from runtime.vocabulary import Vocabulary
from scheduler.grammar.forced import ForcedText


@pytest.fixture(scope="module")
def forced(tokenizer_file: str, vocabulary: Vocabulary) -> ForcedText:
    return ForcedText(Tokenizer.from_file(str(tokenizer_file)), vocabulary)


@pytest.mark.parametrize(
    "text", ['{"name": "', '{"temperature_celsius": ', "true", '", "street_address": "', "日本語です"]
)
@pytest.mark.parametrize("following", ["x", "Paris", " ", "1", "s", '"', "\n", "}", "_", "日"])
def test_no_continuation_tokenises_the_forced_part_in_another_way(
    forced: ForcedText, vocabulary: Vocabulary, text: str, following: str
) -> None:
    ids = forced.ids(text)
    natural = forced._tokenizer.encode(text + following, add_special_tokens=False).ids
    assert tuple(natural[: len(ids)]) == ids
    assert text.encode().startswith(b"".join(map(vocabulary.token_bytes, ids)))


def test_most_of_a_long_text_is_certain(forced: ForcedText) -> None:
    assert len(forced.ids('{"temperature_celsius": ')) >= 4


@pytest.mark.parametrize("text", ["", "a", "x" * 100_000])
def test_nothing_is_forced_where_it_does_not_pay(forced: ForcedText, text: str) -> None:
    assert forced.ids(text) == ()
