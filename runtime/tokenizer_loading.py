"""A tokenizer.json for every checkpoint, and the tokenizer from it.

What only transformers can convert (GGUF vocabularies, tokenizer.model, tiktoken files, slow tokenizers) is converted
once, in a child process, into the cache: importing transformers here would cost every process seconds and hundreds of
megabytes.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from runtime.environment import child_environment
from runtime.gguf_header import read_gguf_header
from runtime.start_error import StartError

_SOURCES = ("tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "vocab.txt", "tokenizer_config.json")
_MORE_SOURCES = ("special_tokens_map.json", "added_tokens.json", "config.json", "tekken.json")
_CONVERSION_TIMEOUT_S = 300
# Part of the cache key: raise it when the conversion itself changes.
_CONVERSION_VERSION = 2


def load_tokenizer(tokenizer_file: str | Path) -> Tokenizer:
    """The tokenizer, with truncation and padding off whatever the file says; StartError if it can't be read."""
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # the library raises plain Exception
        raise StartError(f"the tokenizer {tokenizer_file} can't be read: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenizer_file_for(source: Path, cache_folder: Path, header_bytes: int | None = None) -> Path:
    """The tokenizer.json of a checkpoint directory, a .gguf file, or itself; converted into the cache if there is none.
    `header_bytes` is how long a .gguf file's header is, where that has been read already."""
    if source.is_dir() and (source / "tokenizer.json").is_file():
        return source / "tokenizer.json"
    if source.suffix == ".json" and source.is_file():
        return source
    if not source.exists():
        raise StartError(f"there is no tokenizer at {source}")
    target = cache_folder / "tokenizers" / f"{_content_key(source, header_bytes)}.json"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        _convert(source, target)
    return target


def _content_key(source: Path, header_bytes: int | None) -> str:
    digest = hashlib.sha256(f"{_CONVERSION_VERSION}".encode())
    if source.is_file():
        length = source.stat().st_size
        if source.suffix == ".gguf":
            length = header_bytes or read_gguf_header(source).header_bytes
        with source.open("rb") as content:
            digest.update(content.read(length))
        return digest.hexdigest()[:32]
    files = [source / name for name in (*_SOURCES, *_MORE_SOURCES)] + sorted(source.glob("*.tiktoken"))
    present = [file for file in files if file.is_file()]
    if not any(file.name in _SOURCES or file.suffix == ".tiktoken" for file in present):
        raise StartError(f"there is no tokenizer (tokenizer.json, tokenizer.model, vocab.json, ...) in {source}")
    for file in present:
        data = file.read_bytes()
        digest.update(f"{file.name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()[:32]


def _convert(source: Path, target: Path) -> None:
    """Runs the child; the file appears under its name only when it is whole."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convert-") as scratch:
        result = Path(scratch) / "tokenizer.json"
        command = [sys.executable, "-m", "runtime.tokenizer_conversion", str(source), str(result)]
        try:
            finished = subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=_CONVERSION_TIMEOUT_S,
                env=child_environment(),
            )
        except subprocess.TimeoutExpired:
            raise StartError(f"the tokenizer of {source} was not converted within {_CONVERSION_TIMEOUT_S} s") from None
        if finished.returncode != 0 or not result.is_file():
            lines = finished.stderr.strip().splitlines() or [f"status {finished.returncode}"]
            raise StartError(f"the tokenizer of {source} can't be converted: {lines[-1]}")
        load_tokenizer(result)
        result.replace(target)
