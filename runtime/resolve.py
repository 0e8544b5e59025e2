"""From what the user asked for to what the processes do: every "auto" decided once, each decision with its reason."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from runtime.engine_config import EngineConfig, ModelDescription
from runtime.hardware import Hardware
from runtime.model_description import text_config
from runtime.server_args import ServerArgs
from runtime.start_error import StartError

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16", "float16"]
Quantization = Literal["none", "w8a8", "int4", "fp8"]
AttentionBackend = Literal["torch", "cpu", "flashinfer"]

_QUANTIZATIONS: tuple[Quantization, ...] = ("none", "w8a8", "int4", "fp8")
_STORED_WHOLE = ("", "F32", "F16", "BF16")

MEBIBYTE = 1 << 20
_CPU_POOL_SHARE = 0.4
_CPU_POOL_MOST_BYTES = 2 << 30
_DTYPE_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Given:
    """What the decisions are made from. `weight_bytes` is the size of the weights on disk, for what memory is left on
    CPU; `omp_threads` is OMP_NUM_THREADS."""

    args: ServerArgs
    model: ModelDescription
    hardware: Hardware
    weight_bytes: int = 0
    omp_threads: int | None = None
    kernels_refusal: str | None = "nobody asked for them"
    """Why the compiled CPU kernels can't run the model here, None if they can."""
    native: bool = True
    """Whether the architecture has a native declaration."""
    flashinfer_refusal: str | None = None
    """Why flashinfer can't attend for the model, None if it can."""


class Decisions:
    """The list of (what, why) that is printed at start."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def note(self, name: str, value: Any, reason: str) -> None:
        self.lines.append((f"{name} = {value}", reason))


def resolve(given: Given, *, run_dir: str, version: str) -> EngineConfig:
    """The configuration; StartError in one sentence where the wishes can't be met."""
    args, model, hardware = given.args, given.model, given.hardware
    decisions = Decisions()
    decisions.note("model", model.name, f"{model.architecture}, {model.format}, {model.path}")
    device = _device(args, hardware, decisions)
    model_impl = _model_impl(given, decisions)
    attention_backend = _attention_backend(given, device, decisions)
    dtype = _dtype(given, device, attention_backend, decisions)
    quantization = _quantization(given, attention_backend, decisions)
    context_length = _context_length(args, model, decisions)
    page_size = args.page_size
    kv_tokens = _kv_tokens(given, device, dtype, context_length, decisions)
    max_running = _chosen(args.max_running_requests, 64 if device == "cpu" else 256, "max_running_requests", decisions)
    max_batch = _chosen(args.max_batch_tokens, 2048 if device == "cpu" else 8192, "max_batch_tokens", decisions)
    chunk = _chosen(
        args.chunked_prefill_size, min(max_batch, 1024 if device == "cpu" else 8192), "chunked_prefill_size", decisions
    )
    if max_batch < max_running:
        raise StartError(
            f"--max-batch-tokens {max_batch} can't hold one token of each of {max_running} running requests"
        )
    draft_tokens = _draft_tokens(args, attention_backend, decisions)
    return EngineConfig(
        args=args,
        model=_with_context(model, context_length),
        run_dir=run_dir,
        device=device,
        dtype=dtype,
        quantization=quantization,
        attention_backend=attention_backend,
        model_impl=model_impl,
        page_size=page_size,
        kv_tokens=kv_tokens,
        max_running_requests=max_running,
        max_batch_tokens=max_batch,
        chunked_prefill_size=min(chunk, max_batch),
        lookahead=_chosen(args.lookahead, 0 if device == "cpu" or draft_tokens else 1, "lookahead", decisions),
        threads=_threads(given, decisions),
        tool_call_parser=args.tool_call_parser,
        reasoning_parser=args.reasoning_parser,
        version=version,
        decisions=tuple(decisions.lines),
        draft_tokens=draft_tokens,
    )


def _draft_tokens(args: ServerArgs, attention_backend: AttentionBackend, decisions: Decisions) -> int:
    """By default only where a token's logits do not depend on what is computed beside it: answers stay the same there."""
    if args.speculative_algorithm == "ngram":
        decisions.note("speculation", "ngram", "asked for")
        return args.speculative_num_draft_tokens
    if args.speculative_algorithm == "auto" and attention_backend == "cpu" and not args.lookahead:
        decisions.note("speculation", "ngram", "with the CPU kernels it changes no answer")
        return args.speculative_num_draft_tokens
    return 0


def _device(args: ServerArgs, hardware: Hardware, decisions: Decisions) -> Device:
    needed = args.tp_size // args.nnodes * args.dp_size
    if args.device == "cuda" and hardware.gpus == 0:
        raise StartError("--device cuda was asked for, but this machine shows no NVIDIA GPU")
    if args.device == "cuda" or (args.device == "auto" and hardware.gpus > 0):
        if hardware.gpus < needed:
            raise StartError(
                f"--tp-size {args.tp_size} x --dp-size {args.dp_size} needs {needed} GPUs"
                + (f" on each of {args.nnodes} nodes" if args.nnodes > 1 else "")
                + f", {hardware.gpus} are here"
            )
        decisions.note(
            "device", "cuda", "asked for" if args.device == "cuda" else f"{hardware.gpus} NVIDIA GPU(s) found"
        )
        return "cuda"
    decisions.note("device", "cpu", "asked for" if args.device == "cpu" else "no NVIDIA GPU found")
    return "cpu"


def _model_impl(given: Given, decisions: Decisions) -> Literal["native", "transformers"]:
    asked = given.args.model_impl
    if asked != "auto":
        decisions.note("model_impl", asked, "asked for")
        return asked
    if given.native:
        return "native"
    decisions.note("model_impl", "transformers", f"{given.model.architecture} has no native declaration")
    return "transformers"


def _attention_backend(given: Given, device: Device, decisions: Decisions) -> AttentionBackend:
    args = given.args
    refusal = _kernels_refusal(given, device)
    asked = args.attention_backend
    if asked == "cpu" and refusal is not None:
        raise StartError(f"--attention-backend cpu can't be had: {refusal}; --attention-backend torch can")
    if asked == "flashinfer" and device != "cuda":
        raise StartError("--attention-backend flashinfer does not run on cpu")
    if given.args.deterministic and (refusal is not None or asked not in ("auto", "cpu")):
        raise StartError(
            f"--deterministic needs the compiled CPU kernels: {refusal or 'another backend was asked for'}"
        )
    if asked != "auto":
        decisions.note("attention_backend", asked, "asked for")
        return asked
    if device == "cuda":
        unfit = "flashinfer computes in 16 bits" if args.dtype == "float32" else given.flashinfer_refusal
        if unfit is not None:
            decisions.note("attention_backend", "torch", unfit)
            return "torch"
        decisions.note("attention_backend", "flashinfer", "the one for cuda")
        return "flashinfer"
    if refusal is not None:
        decisions.note("attention_backend", "torch", refusal)
        return "torch"
    decisions.note("attention_backend", "cpu", "compiled kernels for this processor")
    return "cpu"


def _kernels_refusal(given: Given, device: Device) -> str | None:
    args = given.args
    if device != "cpu":
        return f"it does not run on {device}"
    if args.tp_size > 1:
        return "the CPU kernels run on one rank"
    if args.page_size != 16:
        return "the CPU kernels have pages of 16 tokens"
    if args.model_impl == "transformers" or not given.native:
        return "transformers' modelling code brings its own kernels"
    if args.attention_backend == "auto" and args.dtype in ("float32", "float16"):
        return f"the CPU kernels keep their cache in bfloat16, --dtype {args.dtype} was asked for"
    return given.kernels_refusal


def _dtype(given: Given, device: Device, backend: AttentionBackend, decisions: Decisions) -> Dtype:
    args, model = given.args, given.model
    if args.dtype != "auto":
        decisions.note("dtype", args.dtype, "asked for")
        return args.dtype
    if backend == "cpu":
        decisions.note("dtype", "bfloat16", "of the KV cache and of weights that are not quantised; sums are float32")
        return "bfloat16"
    if device == "cpu":
        fast = "avx512_bf16" in given.hardware.processor_flags
        dtype: Dtype = "bfloat16" if fast else "float32"
        decisions.note(
            "dtype", dtype, "the CPU multiplies bfloat16" if fast else "the CPU has no bfloat16 instructions"
        )
        return dtype
    text = text_config(model.config)
    stated = text.get("dtype") or text.get("torch_dtype") or model.config.get("torch_dtype")
    dtype = "float16" if stated == "float16" else "bfloat16"
    decisions.note("dtype", dtype, f"the checkpoint says {stated}" if stated else "the usual one on GPUs")
    return dtype


def _quantization(given: Given, backend: AttentionBackend, decisions: Decisions) -> Quantization:
    asked = given.args.quantization
    if asked is None:
        if backend == "cpu" and given.model.stored_as not in _STORED_WHOLE:
            decisions.note(
                "quantization", "w8a8", f"the file holds {given.model.stored_as} weights; --quantization none undoes it"
            )
            return "w8a8"
        return "none"
    for known in _QUANTIZATIONS:
        if asked == known:
            if known in ("w8a8", "int4") and backend != "cpu":
                raise StartError(f"--quantization {known} needs the compiled CPU kernels (--attention-backend cpu)")
            decisions.note("quantization", known, "asked for")
            return known
    raise StartError(f"--quantization {asked} is not known; {', '.join(_QUANTIZATIONS)} are")


def _context_length(args: ServerArgs, model: ModelDescription, decisions: Decisions) -> int:
    own = model.context_length
    if args.context_length is None:
        decisions.note("context_length", own, "the model's own")
        return own
    if args.context_length > own:
        raise StartError(
            f"--context-length {args.context_length} is more than the {own} positions that {model.name} was made for; "
            "it would answer nonsense beyond them"
        )
    decisions.note("context_length", args.context_length, f"asked for; the model allows {own}")
    return args.context_length


def kv_bytes_per_token(model: ModelDescription, dtype: Dtype) -> int:
    """Keys and values of one token over all layers."""
    text = text_config(model.config)
    heads = int(text.get("num_attention_heads") or 1)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head_dim = int(text.get("head_dim") or int(text.get("hidden_size") or heads) // heads)
    return 2 * int(text.get("num_hidden_layers") or 1) * kv_heads * head_dim * _DTYPE_BYTES[dtype]


def _kv_tokens(given: Given, device: Device, dtype: Dtype, context_length: int, decisions: Decisions) -> int | None:
    args, weight_bytes, available = given.args, given.weight_bytes, given.hardware.available_bytes
    if args.max_total_tokens is not None:
        tokens = _whole_pages(args.max_total_tokens, args.page_size)
        decisions.note("kv_tokens", tokens, "asked for, in whole pages")
        return tokens
    if device == "cuda":
        decisions.note(
            "kv_tokens", "measured", f"after loading, within --mem-fraction-static {args.mem_fraction_static}"
        )
        return None
    per_token = kv_bytes_per_token(given.model, dtype)
    # Weights are held in `dtype`; on disk they may be quantised, so the count of values is not known here. Twice their
    # size on disk is what float32 copies of bfloat16 weights take.
    left = (available - 2 * weight_bytes) // args.dp_size
    budget = min(int(left * _CPU_POOL_SHARE), _CPU_POOL_MOST_BYTES // args.dp_size)
    # More than every row at its longest is never used.
    rows = args.max_running_requests or 64
    tokens = _whole_pages(min(budget // per_token, rows * context_length), args.page_size)
    if tokens < args.page_size * 2:
        raise StartError(
            f"too little memory: {available // MEBIBYTE} MiB are free, and beside the weights "
            f"({weight_bytes // MEBIBYTE} MiB on disk) no KV pool fits"
        )
    size = tokens * per_token // MEBIBYTE
    decisions.note(
        "kv_tokens",
        tokens,
        f"{size} MiB of the {available // MEBIBYTE} MiB free, {per_token} bytes a token",
    )
    return tokens


def _whole_pages(tokens: int, page_size: int) -> int:
    return tokens // page_size * page_size


def _threads(given: Given, decisions: Decisions) -> int:
    args = given.args
    if args.threads is not None:
        decisions.note("threads", args.threads, "asked for")
        return args.threads
    if given.omp_threads is not None:
        decisions.note("threads", given.omp_threads, "OMP_NUM_THREADS")
        return given.omp_threads
    replicas = args.dp_size * args.tp_size // args.nnodes
    threads = max(1, given.hardware.cores // replicas)
    decisions.note(
        "threads",
        threads,
        f"{given.hardware.cores} cores" + (f" over {replicas} engine processes" if replicas > 1 else ""),
    )
    return threads


def _chosen(asked: int | None, default: int, name: str, decisions: Decisions) -> int:
    if asked is None:
        return default
    decisions.note(name, asked, "asked for")
    return asked


def _with_context(model: ModelDescription, context_length: int) -> ModelDescription:
    return msgspec.structs.replace(model, context_length=context_length)
