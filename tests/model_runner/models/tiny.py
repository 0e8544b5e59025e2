"""What tiny random checkpoints have in common: small enough to compute at once, large enough that nothing agrees by luck."""

from typing import Any

import torch

VOCABULARY = 199
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}


def random_prompt(length: int, seed: int = 5) -> list[int]:
    ids: list[int] = torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids
