"""Converts a checkpoint's tokenizer into a tokenizer.json, as a child process of its own: `SOURCE TARGET`.

The only module of this room that imports transformers (and so torch). Nothing imports this module; it ends when done.
"""

import sys
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from runtime.gguf_header import GgufHeader, read_gguf_header

# Nothing in transformers reads the configuration of such GGUF files, which would name the tokenizer's class; that of
# their checkpoints is this one.
_PLAIN_TOKENIZERS = frozenset({"granite", "olmo2", "smollm3"})

# How a byte-level vocabulary wants its text cut before merging, by `tokenizer.ggml.pre`. For a name that transformers
# does not know it takes GPT-2's rule without a word.
SPLIT_BY_TRANSFORMERS = frozenset(
    {
        "dbrx", "deepseek-r1-qwen", "falcon3", "gpt-4o", "llama-bpe", "llama-v3", "llama3", "qwen2", "smaug-bpe", "tekken"
    }
)  # fmt: skip
SPLIT_AS_GPT2 = frozenset({"gpt-2", "mpt", "olmo"})
DIGITS_APART = frozenset({"codeshell", "command-r", "exaone", "refact", "smollm", "starcoder"})


def main(source: Path, target: Path) -> int:
    header = None
    if source.is_dir():
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    elif source.suffix == ".gguf":
        header = read_gguf_header(source)
        plain = header.metadata.get("general.architecture") in _PLAIN_TOKENIZERS
        reader = PreTrainedTokenizerFast if plain else AutoTokenizer
        tokenizer = reader.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    else:
        print(f"{source.name} is neither a directory nor a .gguf file", file=sys.stderr)
        return 1
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        print(f"{type(tokenizer).__name__} has no fast form that could be written as tokenizer.json", file=sys.stderr)
        return 1
    if header is not None and not split_as_stated(backend, header):
        stated = header.metadata.get("tokenizer.ggml.pre")
        known = ", ".join(sorted(SPLIT_BY_TRANSFORMERS | SPLIT_AS_GPT2 | DIGITS_APART))
        print(
            f"the file states tokenizer.ggml.pre {stated!r}, a way of cutting text that is not known here (known: {known}); "
            "--tokenizer-path with the model's own tokenizer.json is the way round",
            file=sys.stderr,
        )
        return 1
    backend.save(str(target))
    return 0


def split_as_stated(backend: Tokenizer, header: GgufHeader) -> bool:
    """Whether the tokenizer cuts text as the file asks, once this has done its part; vocabularies of other kinds than
    byte-level ones have no rule to state."""
    if header.metadata.get("tokenizer.ggml.model") != "gpt2":
        return True
    stated = header.metadata.get("tokenizer.ggml.pre")
    if stated in DIGITS_APART:
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    return stated in SPLIT_BY_TRANSFORMERS | SPLIT_AS_GPT2 | DIGITS_APART


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
