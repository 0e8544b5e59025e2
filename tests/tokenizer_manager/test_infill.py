"""Prompts with a suffix: the marks, their order, blanks, what ends the middle."""

import json
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer

from protocol.errors import RequestError
from protocol.ids import unpack_ids
from protocol.requests import GenerateRequest, TextPrompt
from protocol.sampling import SamplingParameters
from runtime.infill import KNOWN, Marks, find_infill
from runtime.vocabulary import Vocabulary
from tokenizer_manager.preparation import RequestPreparer
from tokenizer_manager.tokenization import TextTokenizer

QWEN, CODE_LLAMA, CODESTRAL = (
    next(marks for marks in KNOWN if marks.prefix == prefix) for prefix in ("<|fim_prefix|>", "▁<PRE>", "[PREFIX]")
)


class Infilling:
    """A preparer whose tokenizer has the marks of a family."""

    def __init__(self, setup: Any, base: Tokenizer, marks: Marks, folder: Any) -> None:
        raw = Tokenizer.from_str(base.to_str())
        names = [name for name in (marks.prefix, marks.suffix, marks.middle, *marks.ends[:1]) if name is not None]
        raw.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
        file = folder / "tokenizer.json"
        file.write_text(raw.to_str())
        made = setup(raw)
        config = msgspec.structs.replace(
            made.config, model=msgspec.structs.replace(made.model, infill=find_infill(Vocabulary.load(file)))
        )
        self.raw = raw
        self.preparer = RequestPreparer(config, TextTokenizer(raw, made.model.bos_token_id), made.renderer)

    def request(self, text: str, suffix: str, **fields: Any) -> GenerateRequest:
        prompt = TextPrompt(text, suffix=suffix, **fields)
        return GenerateRequest("0-x", "tiny", prompt, SamplingParameters(max_tokens=4))

    def tokens(self, text: str, suffix: str, **fields: Any) -> list[str | None]:
        engine = self.preparer.prepare(self.request(text, suffix, **fields)).engine
        return [self.raw.id_to_token(id) for id in unpack_ids(engine.prompt_ids)]


def test_marks_stand_round_the_pieces_and_nothing_merges_across(setup: Any, tiny: Tokenizer, tmp_path: Any) -> None:
    made = Infilling(setup, tiny, QWEN, tmp_path)
    before, after = (tiny.encode(text).tokens for text in ("The weather in", " 21 degrees."))
    assert made.tokens("The weather in", " 21 degrees.") == [
        "<|fim_prefix|>", *before, "<|fim_suffix|>", *after, "<|fim_middle|>",
    ]  # fmt: skip
    assert made.tokens("", "x") == ["<|fim_prefix|>", "<|fim_suffix|>", "x", "<|fim_middle|>"]
    rendered = made.preparer.render(made.request("The", " end"))
    assert rendered.text == "<|fim_prefix|>The<|fim_suffix|> end<|fim_middle|>"


def test_a_suffix_gets_no_blank_before_it_and_the_begin_token_stays_first(
    setup: Any, llama_like: Tokenizer, tmp_path: Any
) -> None:
    made = Infilling(setup, llama_like, CODE_LLAMA, tmp_path)
    prefix = llama_like.encode("Hello", add_special_tokens=False).tokens
    assert prefix[0].startswith("▁")
    tokens = made.tokens("Hello", "fine")
    border = tokens.index("▁<SUF>")
    assert tokens[:border] == ["<s>", "▁<PRE>", *prefix] and tokens[-1] == "▁<MID>"
    assert "".join(token or "" for token in tokens[border + 1 : -1]) == "fine"
    assert made.tokens("Hello", "fine", add_special_tokens=False) == tokens[1:]


def test_an_older_way_to_put_the_blank_is_undone_as_well(setup: Any, llama_like: Tokenizer, tmp_path: Any) -> None:
    data = json.loads(llama_like.to_str())
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}
    data["pre_tokenizer"] = None
    made = Infilling(setup, Tokenizer.from_str(json.dumps(data)), CODE_LLAMA, tmp_path)
    tokens = made.tokens("Hello", "fine there")
    border = tokens.index("▁<SUF>")
    assert "".join(token or "" for token in tokens[2:border]) == "▁Hello"
    assert "".join(token or "" for token in tokens[border + 1 : -1]) == "fine▁there"


def test_a_suffix_comes_first_where_the_model_wants_it_so(setup: Any, tiny: Tokenizer, tmp_path: Any) -> None:
    assert Infilling(setup, tiny, CODESTRAL, tmp_path).tokens("a", "b") == ["[SUFFIX]", "b", "[PREFIX]", "a"]


@pytest.mark.parametrize(
    ("text", "suffix", "param"), [("a<|fim_middle|>", "b", "prompt"), ("a", "<|fim_suffix|>", "suffix")]
)
def test_a_text_that_spells_a_mark_is_refused(
    setup: Any, tiny: Tokenizer, tmp_path: Any, text: str, suffix: str, param: str
) -> None:
    made = Infilling(setup, tiny, QWEN, tmp_path)
    with pytest.raises(RequestError) as refused:
        made.preparer.prepare(made.request(text, suffix))
    assert refused.value.info.param == param and "<|fim_prefix|>" in refused.value.info.message


def test_marks_end_a_filled_middle_and_nothing_else(setup: Any, tiny: Tokenizer, tmp_path: Any) -> None:
    made = Infilling(setup, tiny, QWEN, tmp_path)
    filled, plain = (made.preparer.prepare(made.request("a", suffix)).engine.eos_token_ids for suffix in ("b", ""))
    ends = {made.raw.token_to_id(name) for name in (QWEN.prefix, QWEN.suffix, str(QWEN.middle), QWEN.ends[0])}
    assert set(filled) > set(plain) and ends <= set(filled) and not ends & set(plain)
