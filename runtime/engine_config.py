"""The resolved configuration: no "auto" left. Made once by the supervisor, handed to every process, never changed."""

from typing import Any, Literal

import msgspec

from protocol.control import Role
from runtime.server_args import ServerArgs


class InfillFormat(msgspec.Struct, frozen=True):
    """Ids that mark what stands before and after a middle to be filled in, and ids that end it (the marks among them).

    `middle` closes such a prompt, if the format has it; `marks` are the texts of the marks in the prompt's order.
    """

    prefix: int
    suffix: int
    middle: int | None
    suffix_first: bool
    end_ids: tuple[int, ...]
    marks: tuple[str, ...]


class ModelDescription(msgspec.Struct, frozen=True):
    """One served model, as far as it is known without torch.

    `name` is what the user gave (templates are matched on its last component), `path` what it resolved to on disk.
    `tokenizer_file` is a tokenizer.json, converted into the cache if the checkpoint has none.
    `config` is config.json as a dict (for GGUF: the same keys, read off the file's metadata).
    `tokenizer_config` holds special tokens and the checkpoint's chat template(s) (`chat_template`: str or {name: str}).
    `generation_defaults` are sampling fields of generation_config.json that the server applies.
    """

    name: str
    path: str
    format: Literal["safetensors", "gguf", "dummy"]
    served_names: tuple[str, ...]
    architecture: str
    config: dict[str, Any]
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    tokenizer_file: str
    tokenizer_config: dict[str, Any] = {}
    generation_defaults: dict[str, Any] = {}
    stored_as: str = ""
    """How a GGUF file stores most of its weights (`Q4_1`, `BF16`, ...); "" for other formats."""
    infill: InfillFormat | None = None
    """How prompts with a suffix are written; None: the vocabulary has no tokens for it."""


class EngineConfig(msgspec.Struct, frozen=True):
    """What each process gets. `args` keeps the flags that need no resolving; fields here replace those that did."""

    args: ServerArgs
    model: ModelDescription
    run_dir: str
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16", "float16"]
    quantization: Literal["none", "w8a8", "int4", "fp8"]
    attention_backend: Literal["torch", "cpu", "flashinfer"]
    model_impl: Literal["native", "transformers"]
    page_size: int
    kv_tokens: int | None
    """Tokens of KV pool; None on CUDA, where it is measured after the weights are loaded."""
    max_running_requests: int
    max_batch_tokens: int
    chunked_prefill_size: int
    lookahead: int
    threads: int
    tool_call_parser: str | None
    reasoning_parser: str | None
    version: str
    decisions: tuple[tuple[str, str], ...] = ()
    """What was decided and why, one line each, as printed at start."""
    marker_tokens: tuple[str, ...] | None = None
    """Markers of the tool-call format that are one token each in the model's vocabulary; None: nobody has looked."""
    parser_warnings: tuple[str, ...] = ()
    """Why a parser that was asked for looks wrong for this model."""
    draft_tokens: int = 0
    """Most guessed tokens of one row in a step; 0: no speculation."""


class ProcessSpec(msgspec.Struct, frozen=True):
    """Who a process is: what the supervisor passes to its main function beside the configuration."""

    role: Role
    index: int
    incarnation: int
    endpoint: str
    control_endpoint: str
    supervisor_endpoint: str
    board_path: str
    board_slot: int
    listen_fd: int | None = None
    rank: int = 0
