"""A model whose vocabulary can fill a middle, as a user starts it: the contract changes with it, and the field works."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from tests.integration.servers import Server, serving

MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]


@pytest.fixture(scope="module")
def coder(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("coder") / "llama"
    shutil.copytree(tiny_llama_dir, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": tokenizer.get_vocab_size()}))
    flags = ("--model-path", str(folder), "--load-format", "dummy", "--served-model-name", "tiny")
    with serving(tmp_path_factory.mktemp("coder-server"), *flags) as running:
        yield running.wait_ready()


def test_a_suffix_reaches_the_model_between_the_marks(coder: Server) -> None:
    rows = coder.http.get("/v1/contract").json()["endpoints"]["/v1/completions"]
    (row,) = (row for row in rows if row["field"] == "suffix")
    assert (row["tier"], row["reason"]) == ("honoured", f"the prompt is written with {' '.join(MARKS)}")
    for suffix in ("\n    return 0", ":\n"):
        body = {"prompt": "def main(argv)", "suffix": suffix, "max_tokens": 4}
        rendered = coder.post("/v1/completions/render", body).json()
        assert rendered["prompt"] == f"{MARKS[0]}def main(argv){MARKS[1]}{suffix}{MARKS[2]}"
        answer = coder.post("/v1/completions", body | {"return_token_ids": True}).json()
        assert answer["choices"][0]["prompt_token_ids"] == rendered["token_ids"]
        assert answer["usage"]["prompt_tokens"] == rendered["count"]
    refused = coder.post("/v1/completions", {"prompt": "x", "suffix": MARKS[0]})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "suffix"
