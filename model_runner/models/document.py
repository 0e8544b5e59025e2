"""Writes docs/models.md from the catalogue: `python -m model_runner.models.document docs/models.md`."""

import sys
from pathlib import Path

from model_runner.models.catalogue import ARCHITECTURES, TESTED_TRANSFORMERS

HEAD = """\
# Models

Generated from `model_runner/models/catalogue.py` by `python -m model_runner.models.document docs/models.md`.

## Native declarations

Each is tested with tiny random checkpoints against transformers {version}: float32 logits within 1e-4 of their spread
for one prompt, chunked prefill at six chunk sizes (1 included), a cached prefix, mixed batches, and a row computed
again elsewhere; bfloat16 logits err at most half as much again as transformers' own.

| Architecture (`architectures` in config.json) | Models | Features | GGUF |
|---|---|---|---|
"""

REST = """
A configuration value that a declaration can't do (an unknown activation, rope type, quantisation, a window where the
family has none) stops the start with a sentence that names key and value. So does a tensor that is missing, has another
shape, or has no place in the model.

Rotary scalings: default, linear, dynamic, llama3, yarn, longrope. Where a scaling depends on the length of the sequence
(dynamic, longrope), the served context length decides, once: keys in the cache are shared by sequences of any length,
and answers must not depend on what else is in the batch. `--context-length` at the trained length gives the short form.

## Everything else

An architecture without a declaration runs on transformers' own modelling code, with Candor's paged attention registered
in its attention interface: continuous batching and the prefix cache work as they do natively. It is chosen by itself
and announced; `--model-impl transformers` asks for it, `--model-impl native` forbids it. It needs a transformers class
that hands its attention calls on (`_supports_attention_backend`), one GPU or the CPU, and unquantised safetensors.
Layers that keep another state than keys and values (Mamba, linear attention), chunked attention, and rope scalings that
follow the longest sequence of a batch are refused by name.

## Weights

| Format | What is read |
|---|---|
| safetensors | one file, or several behind `model.safetensors.index.json`; mapped, read piece by piece |
| GGUF | F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4 |
| GPTQ | 2, 4, 8 bits, with or without reordered groups, formats gptq and gptq_v2 |
| AWQ | 4 bits, version gemm |
| compressed-tensors | int-quantized and float-quantized (fp8) per tensor, channel, group or block; pack-quantized 4 and 8 bits |
| fp8 | one scale per tensor or channel, DeepSeek's blocks |
| MXFP4 | GPT-OSS experts |
| random | `--load-format dummy`: the same values for the same names, whatever the sharding |

GGUF files bring their tokenizer. A byte-level vocabulary that states a way of cutting text (`tokenizer.ggml.pre`) that is
not known here, or none, is refused by name: the nearest rule would give other tokens than the model was trained with.
`--tokenizer-path` with the model's own tokenizer.json is the way round.

Quantised checkpoints are dequantised into the model's dtype as they are read, unless a backend computes on the stored
form. Activation scales in a checkpoint are not applied: activations stay in the model's dtype.

Peak memory while loading is the weights in their final form, plus one fused weight in the model's dtype, plus 256 MiB.
Pages of the mapped files count as resident too, and the kernel takes them back when memory is short.
"""


def document() -> str:
    """The whole page."""
    rows = [
        f"| `{entry.name}` | {entry.family} | {entry.features} | {f'`{entry.gguf}`' if entry.gguf else ''} |"
        for entry in ARCHITECTURES
    ]
    return HEAD.format(version=TESTED_TRANSFORMERS) + "\n".join(rows) + "\n" + REST


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document())
