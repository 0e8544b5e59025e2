"""The bundled model: greedy text is what transformers writes, and a seeded text does not depend on its company."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from model_runner.runner import ModelRunner
from protocol.sampling import SamplingParameters
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.environment import read_environment
from runtime.model_description import describe_model
from runtime.server_args import ServerArgs

OUTPUT_TOKENS = 64
QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain why the sky is blue to a child.",
    "List three uses of a paper clip.",
    "Translate 'good morning' into Spanish.",
    "What is 17 times 23?",
    "Who wrote Hamlet?",
    "Give me a recipe for pancakes.",
    "def fibonacci(n):",
    "Tell me a joke about computers.",
]
CONTINUATIONS = [
    "The quick brown fox",
    "Once upon a time, in a village by the mountains,",
    "import numpy as np\n\n",
    "1, 1, 2, 3, 5, 8,",
    "Dear Sir or Madam,",
    "The three laws of motion are",
    "Wir fahren morgen nach",
    '{"name": "Ada", "born":',
    "Water boils at",
    "In the beginning",
]
ORACLE_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> ModelDescription:
    return describe_model(ServerArgs(), smollm2_gguf, read_environment().cache_folder)


@pytest.fixture(scope="module")
def prompts(smollm2: ModelDescription) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(smollm2.tokenizer_file)
    chats = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in QUESTIONS]
    return [tokenizer.encode(text).ids for text in chats + CONTINUATIONS]


@pytest.fixture(scope="module")
def oracle(smollm2: ModelDescription) -> Any:
    """transformers' Llama with the file's weights, read here by other code than the server's."""
    settings = {key: value for key, value in smollm2.config.items() if key not in ("architectures", "model_type")}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings, attn_implementation="sdpa"))
    heads = {"attn_q": smollm2.config["num_attention_heads"], "attn_k": smollm2.config["num_key_value_heads"]}
    weights = {}
    for tensor in gguf.GGUFReader(smollm2.path).tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32))
        name, _, kind = tensor.name.rpartition(".")
        if name.startswith("blk."):
            _, layer, part = name.split(".")
            if part in heads:
                # GGUF keeps the two halves of a rotated head interleaved.
                rows = values.view(heads[part], -1, 2, values.shape[1])
                values = rows.transpose(1, 2).reshape(values.shape)
            name = f"model.layers.{layer}.{ORACLE_NAMES[part]}"
        else:
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[name]
        weights[f"{name}.{kind}"] = values
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model.eval()


@pytest.fixture(scope="module")
def runner(smollm2: ModelDescription, engine_config: Callable[..., EngineConfig]) -> ModelRunner:
    return ModelRunner(engine_config(model=smollm2, kv_tokens=4096))


@pytest.mark.timeout(600)
def test_greedy_text_equals_transformers(
    runner: ModelRunner, prompts: list[list[int]], oracle: Any, drive: Callable[[ModelRunner], Any]
) -> None:
    """Every token is checked against transformers' choice after the same tokens; by induction the texts are equal."""
    driver = drive(runner)
    for slot, prompt in enumerate(prompts):
        driver.add(slot, prompt, SamplingParameters(temperature=0.0))
    outputs = driver.run(OUTPUT_TOKENS)
    for slot, prompt in enumerate(prompts):
        ids = torch.tensor([prompt + outputs[slot][:-1]])
        with torch.inference_mode():
            logits = oracle(ids, use_cache=False, logits_to_keep=OUTPUT_TOKENS).logits[0]
        assert logits.argmax(dim=-1).tolist() == outputs[slot], f"prompt {slot}"


@pytest.mark.timeout(600)
def test_seeded_text_is_the_same_alone_and_in_a_batch_of_16(
    runner: ModelRunner, prompts: list[list[int]], drive: Callable[[ModelRunner], Any]
) -> None:
    samplings = [SamplingParameters(), SamplingParameters(temperature=0.8, top_p=0.95), SamplingParameters(top_k=40)]
    together = drive(runner)
    for slot in range(16):
        together.add(slot, prompts[slot], samplings[slot % 3], seed=slot)
    texts = together.run(32)
    for slot in (0, 7, 14):
        alone = drive(runner)
        alone.add(slot, prompts[slot], samplings[slot % 3], seed=slot)
        assert alone.run(32)[slot] == texts[slot]
