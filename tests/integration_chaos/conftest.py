"""Servers that are made to suffer: the tiny model in full precision, where every answer can be compared byte by byte."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.servers import Server, serving

# One thread: two that wait for each other at every small operation crawl where other work takes their cores.
EXACT = ("--dtype", "float32", "--quantization", "none", "--attention-backend", "torch", "--threads", "1")
PATIENT = ("--max-restarts", "1000", "--restart-window-s", "0.2")


@pytest.fixture(scope="session")
def roomy_llama_dir(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with room for answers that take seconds."""
    folder = tmp_path_factory.mktemp("roomy") / "llama"
    shutil.copytree(tiny_llama_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    return folder


@pytest.fixture(scope="session")
def victim(roomy_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two HTTP workers, one of everything else, evidence kept, a short patience with clients."""
    folder = tmp_path_factory.mktemp("victim")
    flags = ["--model-path", str(roomy_llama_dir), "--served-model-name", "tiny", "--tool-call-parser", "hermes"]
    flags += ["--http-workers", "2", "--slow-client-timeout-s", "2", "--crash-dump-folder", str(folder / "evidence")]
    with serving(folder, *flags, *EXACT, *PATIENT) as server:
        yield server.wait_ready()
