"""Converts a checkpoint's tokenizer into a tokenizer.json, as a child process of its own: `SOURCE TARGET`.

The only module of this room that imports transformers (and so torch). Nothing imports this module; it ends when done.
"""

import sys
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from runtime.gguf_header import read_gguf_header

# Nothing in transformers reads the configuration of such GGUF files, which would name the tokenizer's class; that of
# their checkpoints is this one.
_PLAIN_TOKENIZERS = frozenset({"granite", "olmo2", "smollm3"})


def main(source: Path, target: Path) -> int:
    if source.is_dir():
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    elif source.suffix == ".gguf":
        plain = read_gguf_header(source).metadata.get("general.architecture") in _PLAIN_TOKENIZERS
        reader = PreTrainedTokenizerFast if plain else AutoTokenizer
        tokenizer = reader.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    else:
        print(f"{source.name} is neither a directory nor a .gguf file", file=sys.stderr)
        return 1
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        print(f"{type(tokenizer).__name__} has no fast form that could be written as tokenizer.json", file=sys.stderr)
        return 1
    backend.save(str(target))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
