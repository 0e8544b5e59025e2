"""Two servers for the whole layer: the default model, and a tiny one with several processes of each kind."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.servers import Server, serving


@pytest.fixture(scope="session")
def server(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """SmolLM2 with tool calls."""
    flags = ("--model-path", str(smollm2_gguf), "--served-model-name", "smollm2", "--tool-call-parser", "hermes")
    with serving(tmp_path_factory.mktemp("server"), *flags) as running:
        yield running.wait_ready()


@pytest.fixture(scope="session")
def long_llama_dir(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with room for answers that take seconds."""
    folder = tmp_path_factory.mktemp("long") / "llama"
    shutil.copytree(tiny_llama_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 100_000}))
    return folder


@pytest.fixture(scope="session")
def crowd(long_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The tiny model behind two HTTP workers, two tokenizer managers and two detokenizers."""
    flags = ["--model-path", str(long_llama_dir), "--served-model-name", "tiny", "--context-length", "16384"]
    for role in ("http", "tokenizer", "detokenizer"):
        flags += [f"--{role}-workers", "2"]
    with serving(tmp_path_factory.mktemp("crowd"), *flags) as running:
        yield running.wait_ready()
