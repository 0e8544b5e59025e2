"""Steps of a model with random weights on one device, timed, beside what the device's own memory and units allow.

python -m benchmarks.gpu_speed [--shape llama-3-8b] [--batches 1 32 256] [--context 1024] [--prefill 8192]
"""

import argparse
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from model_runner.runner import ModelRunner
from protocol.ids import pack_ids
from protocol.plan import LAST_SAMPLED, BatchPlan, PageDelta, RowStart
from protocol.sampling import SamplingParameters
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.server_args import ServerArgs
from runtime.version import VERSION

PAGE_SIZE = 16
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "rope_theta": 500000.0,
    },
    "tiny": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
        "rope_theta": 10000.0,
    },
}


@dataclass(frozen=True)
class Roof:
    """What the device does at best, measured: a large copy, and a large product in the model's dtype."""

    bytes_per_s: float
    operations_per_s: float

    @classmethod
    def measure(cls, device: torch.device, dtype: torch.dtype) -> "Roof":
        size = 8192 if device.type == "cuda" else 1024
        source = torch.zeros(size * size * 4, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        left = torch.randn(size, size, device=device).to(dtype)
        copy_s = best_s(lambda: target.copy_(source), device)
        product_s = best_s(lambda: left @ left, device)
        return cls(2 * source.numel() / copy_s, 2 * size**3 / product_s)


def best_s(work: Callable[[], object], device: torch.device, repeats: int = 20) -> float:
    """The shortest of several runs; a run on CUDA is timed by events."""
    times: list[float] = []
    for _ in range(repeats):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
    return min(times)


def make_config(options: argparse.Namespace) -> EngineConfig:
    shape = SHAPES[options.shape]
    longest = max(options.context + 512, options.prefill + 16)
    rows = max(options.batches)
    config = {"max_position_embeddings": longest, "rms_norm_eps": 1e-5, "hidden_act": "silu"} | shape
    model = ModelDescription(
        name=options.shape,
        path="",
        format="dummy",
        served_names=(options.shape,),
        architecture="LlamaForCausalLM",
        config=config | {"tie_word_embeddings": False},
        context_length=longest,
        vocab_size=shape["vocab_size"],
        eos_token_ids=(),
        bos_token_id=None,
        tokenizer_file="",
    )
    pool_tokens = max(rows * (options.context + 512), longest + PAGE_SIZE)
    return EngineConfig(
        args=dataclasses.replace(ServerArgs(), disable_cuda_graph=options.disable_cuda_graph),
        model=model,
        run_dir="",
        device=options.device,
        dtype="bfloat16",
        quantization=options.quantization,
        attention_backend=options.attention_backend,
        model_impl="native",
        page_size=PAGE_SIZE,
        kv_tokens=pool_tokens,
        max_running_requests=rows,
        max_batch_tokens=max(options.prefill, rows),
        chunked_prefill_size=options.prefill,
        lookahead=1,
        threads=torch.get_num_threads(),
        tool_call_parser=None,
        reasoning_parser=None,
        version=VERSION,
    )


class Bench:
    """Drives a runner as a scheduler with lookahead 1 does: the next step is launched before one is collected."""

    def __init__(self, runner: ModelRunner, vocab_size: int) -> None:
        self._runner = runner
        self._vocab_size = vocab_size
        self._step = 0
        self._started: set[int] = set()

    def starts(self, rows: int) -> list[RowStart]:
        fresh = [row for row in range(rows) if row not in self._started]
        self._started |= set(fresh)
        sampling = SamplingParameters(temperature=0.0)
        return [RowStart(row, sampling, row, b"") for row in fresh]

    def run(self, plans: list[BatchPlan]) -> list[float]:
        """Seconds from one result to the next."""
        marks = []
        for number, plan in enumerate(plans):
            self._runner.launch(plan)
            self._runner.sample(None)
            if number:
                self._runner.collect()
                marks.append(time.perf_counter())
        self._runner.collect()
        marks.append(time.perf_counter())
        return [end - begin for begin, end in itertools.pairwise(marks)]

    def prefill(self, tokens: int) -> float:
        """Seconds of a step that reads a whole prompt."""
        pages = -(-tokens // PAGE_SIZE)
        plans = []
        for _ in range(4):
            self._step += 1
            plans.append(
                BatchPlan(
                    step=self._step,
                    slots=pack_ids([0]),
                    new_tokens=pack_ids([tokens]),
                    context=pack_ids([0]),
                    draws=pack_ids([1]),
                    ids=pack_ids(token * 7 % self._vocab_size for token in range(tokens)),
                    starts=self.starts(1),
                    page_deltas=[PageDelta(0, 0, pack_ids(range(1, pages + 1)))],
                )
            )
        return statistics.median(self.run(plans))

    def decode(self, rows: int, context: int, steps: int) -> float:
        """Seconds of a step of `rows` sequences, `context` tokens each."""
        pages_per_row = -(-(context + steps) // PAGE_SIZE)
        deltas = [
            PageDelta(row, 0, pack_ids(range(1 + row * pages_per_row, 1 + (row + 1) * pages_per_row)))
            for row in range(rows)
        ]
        ones = pack_ids([1] * rows)
        plans = []
        for number in range(steps):
            self._step += 1
            plans.append(
                BatchPlan(
                    step=self._step,
                    slots=pack_ids(range(rows)),
                    new_tokens=ones,
                    context=pack_ids([context + number] * rows),
                    draws=ones,
                    ids=pack_ids([LAST_SAMPLED if number else 1] * rows),
                    starts=self.starts(rows) if number == 0 else [],
                    page_deltas=deltas if number == 0 else [],
                )
            )
        return statistics.median(self.run(plans)[5:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3-8b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--attention-backend", choices=("flashinfer", "torch"), default="flashinfer")
    parser.add_argument("--quantization", choices=("none", "fp8"), default="none")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prefill", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--disable-cuda-graph", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    roof = Roof.measure(device, torch.bfloat16)
    config = make_config(options)
    runner = ModelRunner(config)
    bench = Bench(runner, config.model.vocab_size)
    weights = runner.capacity.weight_bytes
    shape = SHAPES[options.shape]
    head_dim = shape["hidden_size"] // shape["num_attention_heads"]
    kv_bytes = 4 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * head_dim
    print(f"{options.shape} bfloat16, {weights / 1e9:.2f} GB of weights, kernels: {runner.capacity.kernels}")
    print(f"measured: {roof.bytes_per_s / 1e9:.0f} GB/s, {roof.operations_per_s / 1e12:.1f} TFLOP/s")
    print("| step | ms | tokens/s | roofline ms | of roofline |\n|---|---|---|---|---|")

    def row(what: str, seconds: float, tokens: int, roof_s: float) -> None:
        print(
            f"| {what} | {1e3 * seconds:.2f} | {tokens / seconds:.0f} | {1e3 * roof_s:.2f} | {100 * roof_s / seconds:.0f}% |"
        )

    parameters = weights / (1 if options.quantization == "fp8" else 2)
    for rows in options.batches:
        seconds = bench.decode(rows, options.context, options.steps)
        read_s = (weights + rows * options.context * kv_bytes) / roof.bytes_per_s
        row(
            f"decode {rows} x {options.context}",
            seconds,
            rows,
            max(read_s, 2 * parameters * rows / roof.operations_per_s),
        )
    seconds = bench.prefill(options.prefill)
    row(
        f"prefill {options.prefill}", seconds, options.prefill, 2 * parameters * options.prefill / roof.operations_per_s
    )


if __name__ == "__main__":
    main()
