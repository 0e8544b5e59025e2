"""What is told of a model without torch, from directories and GGUF files, and what is refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.engine_config import ModelDescription
from runtime.gguf_config import config_from_gguf
from runtime.gguf_header import read_gguf_header
from runtime.model_description import describe_model, read_tokenizer_config
from runtime.server_args import ServerArgs
from runtime.start_error import StartError
from runtime.tokenizer_loading import load_tokenizer, tokenizer_file_for
from tests.conftest import CHATML
from tests.runtime.gguf_writer import header

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkpoint(tiny_llama_dir: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(tiny_llama_dir, tmp_path / "checkpoint"))


def describe(path: Path, **flags: Any) -> Any:
    return describe_model(ServerArgs(**flags), path, path.parent / "cache")


def change(path: Path, **values: Any) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in (document | values).items() if value is not None}))


def test_a_directory(tiny_llama_dir: Path) -> None:
    model = describe(tiny_llama_dir, model_path="some/name")
    assert (model.name, model.format, model.architecture) == ("some/name", "safetensors", "LlamaForCausalLM")
    assert (model.served_names, model.path) == (("some/name",), str(tiny_llama_dir))
    assert (model.context_length, model.vocab_size) == (256, model.config["vocab_size"])
    assert (model.eos_token_ids, model.bos_token_id) == ((2, 0), 1)
    assert model.tokenizer_file == str(tiny_llama_dir / "tokenizer.json")
    assert model.tokenizer_config["chat_template"] == CHATML
    assert describe(tiny_llama_dir, served_model_name=("a", "b")).served_names == ("a", "b")


def test_generation_defaults_and_ends(checkpoint: Path) -> None:
    change(
        checkpoint / "generation_config.json", eos_token_id=0, temperature=0.6, top_k=20, max_length=99, do_sample=True
    )
    model = describe(checkpoint)
    assert model.generation_defaults == {"temperature": 0.6, "top_k": 20}
    assert model.eos_token_ids == (0, 2)  # generation_config's, and the tokenizer's own
    (checkpoint / "generation_config.json").unlink()
    change(checkpoint / "config.json", eos_token_id=[2, 0, 2])
    assert describe(checkpoint).eos_token_ids == (2, 0)


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        (None, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}, 256),
    ],
)
def test_the_context_length(checkpoint: Path, scaling: dict[str, Any] | None, length: int) -> None:
    change(checkpoint / "config.json", rope_scaling=scaling)
    assert describe(checkpoint).context_length == length


def test_dummy_weights_need_none(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    assert describe(checkpoint, load_format="dummy").format == "dummy"
    with pytest.raises(StartError, match="no weights"):
        describe(checkpoint)


def test_where_templates_come_from(tmp_path: Path) -> None:
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(json.dumps({"bos_token": {"content": "<s>"}, "chat_template": "own"}))
    assert read_tokenizer_config(tmp_path) == {"bos_token": "<s>", "chat_template": "own"}
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    settings.write_text(json.dumps({"chat_template": named}))
    assert read_tokenizer_config(tmp_path)["chat_template"] == {"default": "d", "tool_use": "t"}
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": named[:1]}))
    assert read_tokenizer_config(tmp_path)["chat_template"] == {"default": "d"}
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert read_tokenizer_config(tmp_path)["chat_template"] == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert read_tokenizer_config(tmp_path)["chat_template"] == "jinja"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/rag.jinja").write_text("r")
    assert read_tokenizer_config(tmp_path)["chat_template"] == {"default": "jinja", "rag": "r"}


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("config.json", "{", "config.json is not valid JSON"),
        ("config.json", "[" * 100_000, "config.json is not valid JSON"),
        ("config.json", "[]", "config.json does not hold a JSON object"),
        ("config.json", "", "config.json is not valid JSON"),
        ("tokenizer.json", "{}", "is not a tokenizer"),
        ("generation_config.json", '{"temperature": "0.7"}', "temperature in generation_config.json is '0.7'"),
        ("generation_config.json", '{"top_k": 1.5}', "top_k in generation_config.json is 1.5"),
    ],
)
def test_broken_files_are_named(checkpoint: Path, file: str, content: str, sentence: str) -> None:
    (checkpoint / file).write_text(content)
    with pytest.raises(StartError, match=sentence):
        describe(checkpoint)


def test_numbers_beyond_64_bits_do_not_keep_a_checkpoint_from_being_served(checkpoint: Path) -> None:
    """What transformers writes for a tokenizer without a limit; and one in the configuration itself."""
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": int(1e30)}))
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"some_limit": int(1e30)}))
    model = describe(checkpoint)
    assert set(model.tokenizer_config) <= {"bos_token", "eos_token", "unk_token", "pad_token", "chat_template"}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(model), type=ModelDescription) == model


def test_missing_pieces_and_pickles_are_named(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").rename(checkpoint / "elsewhere.json")
    (checkpoint / "tokenizer_config.json").unlink()
    with pytest.raises(StartError, match="no tokenizer"):
        describe(checkpoint)
    assert describe(checkpoint, tokenizer_path=str(checkpoint / "elsewhere.json")).vocab_size > 0
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(StartError, match="pickle"):
        describe(checkpoint)
    (checkpoint / "a.gguf").touch()
    (checkpoint / "b.gguf").touch()
    with pytest.raises(StartError, match=r"2 \.gguf files"):
        describe(checkpoint)
    (checkpoint / "config.json").unlink()
    with pytest.raises(StartError, match=r"no config\.json"):
        describe(checkpoint, load_format="dummy")


COMMON = {
    "block_count": 2,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "vocab_size": 100,
}
MIXTURE = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 48}


def gguf_config(
    folder: Path, architecture: str, extra: dict[str, Any], tensors: dict[str, tuple[int, ...]]
) -> dict[str, Any]:
    metadata = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key}": value for key, value in (COMMON | extra).items() if value is not None}
    path = folder / "m.gguf"
    path.write_bytes(header(metadata, tensors))
    return config_from_gguf(read_gguf_header(path))


@pytest.mark.parametrize(
    ("architecture", "extra", "tensors", "expected"),
    [
        ("llama", {}, {}, {"model_type": "llama", "head_dim": 16, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}),
        ("llama", {}, {"output.weight": (64, 100)}, {"tie_word_embeddings": False}),
        ("llama", {}, {"rope_freqs.weight": (8,)}, {"rope_scaling": {"rope_type": "gguf_factors", "tensor": "rope_freqs.weight"}}),
        ("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, {}, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("llama", {"attention.head_count_kv": [2, 2]}, {}, {"num_key_value_heads": 2}),
        ("llama", {"attention.head_count_kv": None}, {}, {"num_key_value_heads": 4}),
        ("qwen2", {"rope.freq_base": 1000000.0}, {}, {"architectures": ["Qwen2ForCausalLM"], "rope_theta": 1000000.0}),
        ("qwen3", {"attention.key_length": 32}, {}, {"head_dim": 32, "attention_bias": False}),
        ("granite", {"attention.scale": 0.0078125, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0}, {}, {"attention_multiplier": 0.0078125, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0}),
        ("granite", {"logit_scale": 8.0}, {}, {"attention_multiplier": 0.25, "embedding_multiplier": 1.0, "residual_multiplier": 1.0}),
        ("smollm3", {}, {}, {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layer_interval": 4, "attention_bias": False}),
        ("olmo2", {}, {}, {"architectures": ["Olmo2ForCausalLM"], "attention_bias": False}),
        ("qwen3moe", MIXTURE, {}, {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}),
        ("gemma2", {}, {}, {"layer_types": ["sliding_attention", "full_attention"], "final_logit_softcapping": 30.0}),
        ("gemma3", {"block_count": 6}, {}, {"layer_types": ["sliding_attention"] * 5 + ["full_attention"]}),
        ("phi3", {"rope.dimension_count": 8}, {}, {"partial_rotary_factor": 0.5}),
    ],
)  # fmt: skip
def test_gguf_metadata_in_the_words_of_config_json(
    architecture: str,
    extra: dict[str, Any],
    tensors: dict[str, tuple[int, ...]],
    expected: dict[str, Any],
    tmp_path: Path,
) -> None:
    config = gguf_config(tmp_path, architecture, extra, tensors)
    assert {name: config[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("architecture", "extra", "sentence"),
    [
        ("mamba", {}, "architecture 'mamba' is not supported"),
        ("llama", {"expert_count": 8}, "mixture-of-experts"),
        ("llama", {"block_count": None}, "llama.block_count is missing"),
        ("llama", {"attention.head_count": 0}, "0 attention heads"),
        ("llama", {"attention.head_count_kv": [2, 4]}, "head_count_kv is missing or no number"),
        ("granite", {}, "granite.logit_scale is missing"),
        ("granite", {"logit_scale": 8.0, "rope.scaling.finetuned": False}, "without rotation"),
        ("olmo2", {"attention.sliding_window": 4096}, "OLMo 3"),
        ("qwen3moe", {}, "qwen3moe.expert_count is missing"),
        ("qwen3moe", MIXTURE | {"expert_weights_norm": False}, "not normalised"),
        ("llama", {"rope.scaling.type": "spiral"}, "'spiral' is not supported"),
    ],
)
def test_gguf_models_that_would_answer_wrongly_are_refused(
    architecture: str, extra: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        gguf_config(tmp_path, architecture, extra, {})


def test_the_default_model_and_its_tokenizer(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The converted tokenizer gives transformers' own ids, and is made once."""
    cache = tmp_path_factory.mktemp("cache")
    model = describe_model(ServerArgs(), smollm2_gguf, cache)
    assert (model.format, model.architecture, model.context_length) == ("gguf", "LlamaForCausalLM", 8192)
    assert (model.vocab_size, model.eos_token_ids, model.bos_token_id) == (49152, (2,), 1)
    assert "<|im_start|>" in model.tokenizer_config["chat_template"]
    assert model.tokenizer_config["eos_token"] == "<|im_end|>"
    texts = [
        "Hello, world!",
        "  two  spaces",
        "12345 + 678",
        "naïve café 🙂 你好",
        "<|im_start|>user\nhi<|im_end|>\n",
        "\n\n\tx",
    ]
    script = (
        "import json, sys; from transformers import AutoTokenizer\n"
        "from pathlib import Path; path = Path(sys.argv[1])\n"
        "tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)\n"
        "print(json.dumps([tokenizer.encode(text, add_special_tokens=False) for text in json.loads(sys.argv[2])]))"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(smollm2_gguf), json.dumps(texts)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    tokenizer = load_tokenizer(model.tokenizer_file)
    ours = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert ours == json.loads(finished.stdout.splitlines()[-1])
    made = Path(model.tokenizer_file).stat().st_mtime_ns
    assert tokenizer_file_for(smollm2_gguf, cache) == Path(model.tokenizer_file)
    assert Path(model.tokenizer_file).stat().st_mtime_ns == made


def test_a_gguf_tokenizer_whose_architecture_transformers_does_not_read(tmp_path: Path) -> None:
    tokens = [*"helo1", "\u0120", "\u0120\u0120", "he", "ll", "hell", "hello", "<|end_of_text|>"]
    vocabulary = {
        "model": "gpt2",
        "pre": "refact",
        "tokens": tokens,
        "token_type": [1] * (len(tokens) - 1) + [3],
        "merges": ["\u0120 \u0120", "h e", "l l", "he ll", "hell o"],
        "eos_token_id": len(tokens) - 1,
    }
    metadata = {"general.architecture": "granite"} | {f"tokenizer.ggml.{key}": part for key, part in vocabulary.items()}
    (tmp_path / "m.gguf").write_bytes(header(metadata))
    tokenizer = load_tokenizer(tokenizer_file_for(tmp_path / "m.gguf", tmp_path / "cache"))
    found = tokenizer.encode("hello<|end_of_text|> 11", add_special_tokens=False)
    assert found.tokens == ["hello", "<|end_of_text|>", "\u0120", "1", "1"]
    # Digits stand apart, so the blanks before one belong together: GPT-2's rule would leave it the last of them.
    assert tokenizer.encode("h  1", add_special_tokens=False).tokens == ["h", "\u0120\u0120", "1"]


@pytest.mark.parametrize("pre", ["novel", None])
def test_a_way_of_cutting_text_that_is_not_known_is_refused(pre: str | None, tmp_path: Path) -> None:
    stated = {} if pre is None else {"tokenizer.ggml.pre": pre}
    vocabulary = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
    (tmp_path / "m.gguf").write_bytes(header({"general.architecture": "granite"} | vocabulary | stated))
    with pytest.raises(StartError, match=f"tokenizer.ggml.pre {pre!r}, a way of cutting text that is not known"):
        tokenizer_file_for(tmp_path / "m.gguf", tmp_path / "cache")


def test_ways_of_cutting_text_left_to_transformers_are_its_own() -> None:
    script = (
        "import json\n"
        "from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS as splits\n"
        "from runtime.tokenizer_conversion import DIGITS_APART, SPLIT_AS_GPT2, SPLIT_BY_TRANSFORMERS as left\n"
        "print(json.dumps([sorted(left - splits.keys()), sorted((SPLIT_AS_GPT2 | DIGITS_APART) & splits.keys())]))"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(finished.stdout.splitlines()[-1]) == [[], []]


def test_a_slow_tokenizer_is_converted_once(tmp_path: Path) -> None:
    source = tmp_path / "bert"
    source.mkdir()
    (source / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "##s"]))
    (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    (source / "config.json").write_text(json.dumps({"model_type": "bert"}))
    file = tokenizer_file_for(source, tmp_path / "cache")
    assert load_tokenizer(file).encode("hellos", add_special_tokens=False).tokens == ["hello", "##s"]
    assert list((tmp_path / "cache/tokenizers").iterdir()) == [file]
    (source / "vocab.txt").write_text("[UNK]\nhello")
    assert tokenizer_file_for(source, tmp_path / "cache") != file


def test_what_can_t_be_converted_is_told(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"no protobuf")
    with pytest.raises(StartError, match="can't be converted") as caught:
        tokenizer_file_for(tmp_path, tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache/tokenizers").iterdir()) == []
