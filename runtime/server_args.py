"""Every flag, declared once: name, type, default, help. Flag names follow SGLang where it has the flag."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal


def flag(default: Any, help: str, *, group: str = "server", metavar: str | None = None) -> Any:
    """A field of `ServerArgs`: `--field-name`, with what --help says of it. Booleans become `--name` / `--no-name`."""
    return dataclasses.field(default=default, metadata={"help": help, "group": group, "metavar": metavar})


@dataclass(frozen=True)
class ServerArgs:
    """What the user asked for, "auto" and None still in it. `resolve` turns it into an `EngineConfig`."""

    model_path: str = flag("smollm2", "directory, .gguf file or hub id; smollm2 is the bundled default", group="model")
    tokenizer_path: str | None = flag(None, "tokenizer directory or file (default: the model's)", group="model")
    served_model_name: tuple[str, ...] = flag(
        (), "name(s) that clients may use (default: the model path as given)", group="model"
    )
    revision: str | None = flag(None, "hub revision", group="model")
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = flag(
        "auto", "where weights come from; dummy makes random ones", group="model"
    )
    model_impl: Literal["auto", "native", "transformers"] = flag(
        "auto", "native declaration or transformers' own code", group="model"
    )
    trust_remote_code: bool = flag(False, "run Python code that ships with the checkpoint", group="model")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = flag(
        "auto", "dtype of weights and activations", group="model"
    )
    quantization: str | None = flag(None, "none, w8a8, int4, fp8 (default: by checkpoint and device)", group="model")
    context_length: int | None = flag(
        None, "tokens of prompt and answer together (default: the model's)", group="model"
    )
    chat_template: str = flag("auto", "auto, checkpoint, a registry name, or a file", group="model")
    allow_special_tokens_in_content: bool = flag(False, "let message content produce control tokens", group="model")
    trust_request_chat_template: bool = flag(False, "accept chat_template in requests", group="model")

    tool_call_parser: str | None = flag(None, "format of the model's tool calls, or auto", group="parsing")
    reasoning_parser: str | None = flag(None, "format of the model's reasoning, or auto", group="parsing")
    tool_parser_plugin: str | None = flag(None, "Python file that registers parsers of one's own", group="parsing")
    reasoning_field: Literal["both", "reasoning_content", "reasoning"] = flag(
        "both", "name of the reasoning field in answers", group="parsing"
    )
    unknown_tools: Literal["forward", "drop"] = flag(
        "forward", "calls of tools that the request did not declare", group="parsing"
    )
    exclude_tools_when_none: bool = flag(
        False, "leave tools out of the prompt when tool_choice is none", group="parsing"
    )
    json_whitespace: Literal["any", "compact", "bounded"] = flag(
        "compact", "whitespace that JSON constraints allow", group="parsing"
    )

    host: str = flag("127.0.0.1", "address to listen on", group="http")
    port: int = flag(30000, "port to listen on", group="http")
    uds: str | None = flag(None, "listen on this unix socket instead", group="http")
    http_workers: int = flag(1, "HTTP processes sharing the port", group="http")
    api_key: tuple[str, ...] = flag((), "key(s) that clients must send as Bearer token", group="http")
    admin_api_key: str | None = flag(None, "key for admin routes", group="http")
    max_body_bytes: int = flag(4 << 20, "largest request body", group="http")
    root_path: str = flag("", "prefix under which a proxy serves this", group="http")
    cors_allow_origins: tuple[str, ...] = flag((), "origins whose pages may call the API", group="http")
    ssl_certfile: str | None = flag(None, "TLS certificate", group="http")
    ssl_keyfile: str | None = flag(None, "TLS key", group="http")
    metrics: bool = flag(True, "serve Prometheus metrics at /metrics", group="http")
    metrics_need_key: bool = flag(False, "ask for the API key at /metrics too", group="http")
    sse_keepalive_s: float = flag(0.0, "seconds between SSE comments on a silent stream (0: none)", group="http")
    request_timeout_s: float | None = flag(None, "longest life of a request", group="http")
    slow_client_timeout_s: float = flag(60.0, "cut a client that reads nothing for so long", group="http")

    strict: bool = flag(False, "400 instead of an adjustment, for every request", group="contract")
    context_overflow: Literal["reject", "clamp"] = flag(
        "reject", "prompt + max_tokens over the context", group="contract"
    )
    greedy_n: Literal["duplicate", "reject"] = flag("duplicate", "n > 1 at temperature 0", group="contract")
    unknown_model: Literal["reject", "accept"] = flag("reject", "a model name that is not served", group="contract")
    stray_stream_options: Literal["reject", "ignore"] = flag(
        "reject", "stream_options without stream", group="contract"
    )
    stream_response_default_include_usage: bool = flag(
        False, "usage chunk in streams unless the request says otherwise", group="contract"
    )
    sampling_defaults: Literal["model", "openai"] = flag(
        "model", "defaults from generation_config.json, or OpenAI's", group="contract"
    )

    tokenizer_workers: int = flag(1, "tokenizer manager processes", group="processes")
    detokenizer_workers: int = flag(1, "detokenizer processes", group="processes")
    tp_size: int = flag(1, "tensor-parallel ranks", group="processes")
    dp_size: int = flag(1, "data-parallel scheduler replicas", group="processes")
    nnodes: int = flag(1, "hosts that share the ranks of one model", group="processes")
    node_rank: int = flag(0, "which of them this is; node 0 serves HTTP", group="processes")
    dist_init_addr: str | None = flag(
        None, "HOST:PORT of node 0 where all nodes meet", group="processes", metavar="HOST:PORT"
    )
    load_balance: Literal["cache_aware", "round_robin", "least_loaded"] = flag(
        "cache_aware", "how replicas are chosen", group="processes"
    )
    drain_timeout_s: float = flag(30.0, "how long running requests may finish after SIGTERM", group="processes")
    start_timeout_s: float = flag(1800.0, "longest start-up without progress", group="processes")
    recovery: Literal["on", "off"] = flag("on", "resume requests when a process dies, or fail them", group="processes")
    max_restarts: int = flag(5, "restarts within --restart-window-s before the server gives up", group="processes")
    restart_window_s: float = flag(300.0, "window of --max-restarts", group="processes")
    stall_timeout_s: float = flag(60.0, "a loop that does not move for so long is stuck", group="processes")
    crash_dump_folder: str | None = flag(None, "where evidence of crashes goes (default: none kept)", group="processes")

    device: Literal["auto", "cpu", "cuda"] = flag("auto", "where the model runs", group="engine")
    attention_backend: Literal["auto", "torch", "cpu", "flashinfer"] = flag(
        "auto", "attention and cache kernels", group="engine"
    )
    page_size: int = flag(16, "tokens per KV page", group="engine")
    max_total_tokens: int | None = flag(None, "tokens the KV pool holds (default: from memory)", group="engine")
    mem_fraction_static: float = flag(0.85, "share of GPU memory for weights and KV pool", group="engine")
    max_running_requests: int | None = flag(None, "rows that run at once (default: from the device)", group="engine")
    max_queued_requests: int = flag(2048, "waiting requests before new ones get 503", group="engine")
    max_running_per_key: int | None = flag(
        None,
        "requests that one API key may have at a time, waiting ones included, before new ones get 429",
        group="engine",
    )
    max_batch_tokens: int | None = flag(None, "tokens in one step (default: from the device)", group="engine")
    chunked_prefill_size: int | None = flag(
        None, "prompt tokens in one step (default: from the device)", group="engine"
    )
    schedule_policy: Literal["fcfs", "lpm", "priority"] = flag("fcfs", "order of the queue", group="engine")
    evict_low_priority: bool = flag(False, "a full queue drops its lowest priority for a higher one", group="engine")
    disable_cuda_graph: bool = flag(False, "launch the kernels of decode steps one by one", group="engine")
    lookahead: int | None = flag(None, "steps planned ahead of results (default: 0 on CPU, 1 on CUDA)", group="engine")
    speculative_algorithm: Literal["auto", "ngram", "none"] = flag(
        "auto", "guess tokens from the text so far, keep what is drawn (auto: ngram on the CPU kernels)", group="engine"
    )
    speculative_num_draft_tokens: int = flag(8, "most guessed tokens of one row in a step", group="engine")
    disable_radix_cache: bool = flag(False, "compute every prompt anew", group="engine")
    max_itl_ms: float | None = flag(
        None,
        "hold prompt chunks to this inter-token latency of running streams (default: 1.5 of what they take alone)",
        group="engine",
    )
    deterministic: bool = flag(False, "logits independent of the batch, at some cost", group="engine")
    grammar_compile_timeout_s: float = flag(5.0, "longest compilation of one grammar", group="engine")
    threads: int | None = flag(None, "compute threads (default: the cores this process may use)", group="engine")

    log_level: Literal["debug", "info", "warning", "error"] = flag("info", "verbosity", group="logging")
    log_requests: bool = flag(False, "log each request's parameters and texts", group="logging")
