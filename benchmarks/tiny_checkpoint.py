"""A model that costs next to nothing, to measure what an engine costs beside it: random weights under a real vocabulary.

    python -m benchmarks.tiny_checkpoint --tokenizer-from DIRECTORY_OR_GGUF TARGET

Two Llama layers, hidden 64, 4 heads over 2 key-value heads of 32, bfloat16, 8,192 positions; about 6 MB at 49,152 tokens.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM


def write_checkpoint(tokenizer_from: Path, target: Path) -> None:
    """The same weights each time."""
    torch.manual_seed(0)
    if tokenizer_from.suffix == ".gguf":
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_from.parent, gguf_file=tokenizer_from.name)
    else:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_from)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer-from", type=Path, required=True, help="a checkpoint's directory, or a .gguf file")
    parser.add_argument("target", type=Path, help="directory to write")
    arguments = parser.parse_args()
    write_checkpoint(arguments.tokenizer_from, arguments.target)
