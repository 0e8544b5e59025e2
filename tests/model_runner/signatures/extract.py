"""Writes the signatures of the GPU libraries' functions that Candor calls, read from a wheel's sources (nothing is run).

python tests/model_runner/signatures/extract.py flashinfer_python-0.7.4-py3-none-any.whl > flashinfer.json
"""

import ast
import json
import sys
import zipfile
from typing import Any

WANTED: dict[str, dict[str, tuple[str, ...]]] = {
    "flashinfer": {
        "flashinfer/prefill.py": (
            "BatchPrefillWithPagedKVCacheWrapper.__init__",
            "BatchPrefillWithPagedKVCacheWrapper.plan",
            "BatchPrefillWithPagedKVCacheWrapper.run",
        ),
        "flashinfer/decode.py": (
            "BatchDecodeWithPagedKVCacheWrapper.__init__",
            # `plan` itself takes any keyword and hands it on to this one.
            "BatchDecodeWithPagedKVCacheWrapper._plan_impl",
            "BatchDecodeWithPagedKVCacheWrapper.run",
        ),
        "flashinfer/attention/_core.py": (
            "BatchAttentionWithAttentionSinkWrapper.__init__",
            "BatchAttentionWithAttentionSinkWrapper.run",
            "BatchDecodeWithAttentionSinkWrapper.__init__",
            "BatchDecodeWithAttentionSinkWrapper.run",
        ),
        "flashinfer/norm/__init__.py": ("rmsnorm", "fused_add_rmsnorm"),
        "flashinfer/activation.py": ("silu_and_mul", "gelu_tanh_and_mul", "gelu_and_mul"),
        "flashinfer/rope.py": ("apply_rope_with_cos_sin_cache_inplace",),
        "flashinfer/sampling.py": ("top_k_mask_logits", "top_p_renorm_probs"),
    },
    "sgl_kernel": {
        "sgl_kernel/elementwise.py": (
            "rmsnorm",
            "fused_add_rmsnorm",
            "silu_and_mul",
            "gelu_tanh_and_mul",
            "gelu_and_mul",
            "rotary_embedding",
        ),
        "sgl_kernel/gemm.py": ("fp8_scaled_mm", "sgl_per_token_quant_fp8"),
    },
}


def parameters(function: ast.FunctionDef) -> list[list[Any]]:
    """[name, kind, has a default] of each parameter, kinds as in `inspect`."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = len(positional) - len(arguments.defaults)
    found: list[list[Any]] = [
        [argument.arg, "POSITIONAL_OR_KEYWORD", index >= without_default] for index, argument in enumerate(positional)
    ]
    if arguments.vararg:
        found.append([arguments.vararg.arg, "VAR_POSITIONAL", False])
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append([argument.arg, "KEYWORD_ONLY", default is not None])
    if arguments.kwarg:
        found.append([arguments.kwarg.arg, "VAR_KEYWORD", False])
    return found


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """By qualified name; of overloads the last one, which is the function itself."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}": inner for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


def main(wheel: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        library = next(name for name in WANTED if any(file.startswith(f"{name}/") for file in archive.namelist()))
        signatures: dict[str, list[list[Any]]] = {}
        for file, names in WANTED[library].items():
            known = functions(ast.parse(archive.read(file)))
            signatures |= {name: parameters(known[name]) for name in names}
    version = wheel.rpartition("/")[2].split("-")[1]
    json.dump({"library": library, "version": version, "signatures": signatures}, sys.stdout, indent=1)


if __name__ == "__main__":
    main(sys.argv[1])
