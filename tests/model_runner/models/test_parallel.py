"""Two ranks in two threads give the logits of one, for every way that a layer is split."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from model_runner.models.registry import build_model
from tests.model_runner.models.tiny import SIZES, random_prompt

PROMPT = random_prompt(13)
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "tied-head": ("LlamaConfig", {"tie_word_embeddings": True}),
    "one-kv-head": ("LlamaConfig", {"num_key_value_heads": 1}),
    "fused-projections": ("Phi3Config", {}),
    "norm-over-all-heads": ("Olmo2Config", {}),
    "uneven-heads": ("LlamaConfig", {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}),
    "norm-over-uneven-heads": ("Olmo2Config", {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16}),
    "norm-over-one-kv-head": ("Olmo2Config", {"num_key_value_heads": 1}),
    "experts": ("MixtralConfig", EXPERTS),
    "sinks-and-stacked-experts": ("GptOssConfig", EXPERTS | {"head_dim": 16}),
    "latent-attention": ("DeepseekV3Config", LATENT),
}


class Meeting:
    """Where the ranks' threads exchange tensors."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.left: list[torch.Tensor] = [torch.empty(0)] * world
        self.barrier = threading.Barrier(world, timeout=120)

    def exchange(self, rank: int, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.left[rank] = tensor.clone()
        self.barrier.wait()
        found = list(self.left)
        self.barrier.wait()
        return found


class ThreadRank:
    """A communicator between threads."""

    waits = False

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting = meeting
        self.rank = rank
        self.world = meeting.world

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._meeting.exchange(self.rank, tensor)).sum(0)

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._meeting.exchange(self.rank, tensor), dim=-1)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_are_one(
    case: str, tmp_path: Path, make_config: Any, make_rig: Any, rig_of: Callable[..., Any]
) -> None:
    name, changes = CASES[case]
    torch.manual_seed(2)
    reference = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**(SIZES | changes)))
    with torch.no_grad():
        for tensor in reference.parameters():
            if tensor.dim() == 1:
                tensor.add_(torch.randn(tensor.shape) * 0.3)
    reference.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    config = make_config(tmp_path, values, values["architectures"][0])
    whole = make_rig(config)
    wanted = whole.whole(PROMPT)
    meeting = Meeting(2)

    def run(rank: int) -> Any:
        model = build_model(config, rank, 2, communicator=ThreadRank(meeting, rank))
        return model, rig_of(model).whole(PROMPT)

    with ThreadPoolExecutor(2) as pool:
        (first, one), (second, other) = pool.map(run, range(2))
    torch.testing.assert_close(one, wanted, rtol=0, atol=1e-4 * wanted.std().item())
    torch.testing.assert_close(other, one, rtol=0, atol=0)
    assert max(first.weight_bytes, second.weight_bytes) < 0.75 * whole.model.weight_bytes
