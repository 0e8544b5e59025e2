"""Whether a compiled library computes right on this very processor.

`python -m model_runner.kernels.check FILE` is run once per compilation, in a process of its own: an instruction that the
processor lacks ends that process and not the server. Status 0: all is well; 1: the last line of stderr says what is not.
It packs its few weights with numpy: `packing` stands on torch, which takes seconds to load.
"""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
from numpy.typing import NDArray

from model_runner.kernels.library import (
    DrawsStruct,
    LayerStruct,
    LinearStruct,
    ModelStruct,
    StepStruct,
    open_library,
)

Floats = NDArray[numpy.float32]
Bytes = NDArray[numpy.uint8]

ROWS, INPUTS, OUTPUTS = 9, 64, 16  # more rows than any tile has
WIDTH, HEADS, HEAD_DIM, TOKENS = 32, 2, 16, 20
EPSILON = 1e-5


def main(library_file: str) -> int:
    library = open_library(Path(library_file))
    engine = library.candor_create(2)
    wrong = list(wrong_products(library, engine))
    if not numpy.allclose(hidden_states(library, engine), expected_hidden_states(), rtol=0.0, atol=0.05):
        wrong.append("the forward pass")
    if likely_ids(library, engine) != [37]:
        wrong.append("the search for a draw's contenders")
    library.candor_destroy(engine)
    if wrong:
        print(f"wrong results of {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def linear(form: int, data: Bytes, outputs: int, inputs: int, bits: int = 8, gated: bool = False) -> LinearStruct:
    return LinearStruct(form, outputs, inputs, gated, bits, data.ctypes.data, None)


def wrong_products(library: ctypes.CDLL, engine: int) -> Iterator[str]:
    """Names of the forms whose products are not exact, though nothing in these needs rounding."""
    random = numpy.random.default_rng(0)
    signed = random.integers(-127, 128, (OUTPUTS, INPUTS)).astype(numpy.int8)
    nibbles = random.integers(0, 16, (OUTPUTS, INPUTS)).astype(numpy.uint8)
    dense = signed.astype(numpy.float32)
    forms = [
        ("int4", 0, pack_int4(nibbles), nibbles * 0.5 - 4.0),
        ("int8", 1, pack_int8(signed), dense * 0.25),
        ("bfloat16", 2, pack_bfloat16(dense), dense),
        ("float32", 3, pack_float32(dense), dense),
    ]
    for bits, largest in ((8, 127), (16, 32767)):
        x = random.integers(-127, 128, (ROWS, INPUTS)).astype(numpy.float32)
        x[:, ::32] = largest  # a group's scale is 1
        for name, form, data, weight in forms:
            out = numpy.empty((ROWS, OUTPUTS), numpy.float32)
            struct = linear(form, data, OUTPUTS, INPUTS, bits)
            library.candor_linear(engine, ctypes.byref(struct), x.ctypes.data, ROWS, out.ctypes.data)
            if not numpy.array_equal(out, x.astype(numpy.float64) @ weight.T):
                yield f"{name} products with {bits}-bit inputs"


def pack_int4(nibbles: Bytes) -> Bytes:
    """One panel; source/linear.h has the layouts. Scales are 0.5, minimums -4."""
    quads = nibbles.reshape(OUTPUTS, -1, 8, 4).transpose(1, 2, 0, 3)
    lines = (quads[:, :4] | quads[:, 4:] << 4).reshape(len(quads), -1)
    halves = numpy.repeat(numpy.array([[0.5, -4.0]], numpy.float16), OUTPUTS, 1).repeat(len(quads), 0)
    return numpy.hstack([lines, halves.view(numpy.uint8)])


def pack_int8(quants: NDArray[numpy.int8]) -> Bytes:
    lines = quants.reshape(OUTPUTS, -1, 8, 4).transpose(1, 2, 0, 3).reshape(INPUTS // 32, -1)
    scales = numpy.full((len(lines), OUTPUTS), 0.25, numpy.float16)
    return numpy.hstack([lines.view(numpy.uint8), scales.view(numpy.uint8)])


def pack_bfloat16(weight: Floats) -> Bytes:
    halves = (weight.view(numpy.uint32) >> 16).astype(numpy.uint16)
    return numpy.ascontiguousarray(halves.reshape(OUTPUTS, -1, 2).transpose(1, 0, 2)).view(numpy.uint8)


def pack_float32(weight: Floats) -> Bytes:
    return numpy.ascontiguousarray(weight.reshape(-1, OUTPUTS, weight.shape[1]).transpose(0, 2, 1)).view(numpy.uint8)


def model_weights() -> dict[str, Floats]:
    """A decoder of one layer, [outputs, inputs] each."""
    rows = dict.fromkeys(("embedding", "qkv", "out", "gate", "up", "down"), WIDTH) | {"qkv": (HEADS + 2) * HEAD_DIM}
    random = numpy.random.default_rng(1)
    return {name: random.normal(0.0, 0.4, (count, WIDTH)).astype(numpy.float32) for name, count in rows.items()}


def hidden_states(library: ctypes.CDLL, engine: int) -> Floats:
    """The kernels' [TOKENS, WIDTH] of ids 0.. on two pages."""
    weights = model_weights()
    # Panels of gate and up alternate.
    halves = [weights[name].reshape(-1, OUTPUTS, WIDTH) for name in ("gate", "up")]
    weights["gate_up"] = numpy.stack(halves, 1).reshape(-1, WIDTH)
    data = {name: pack_float32(weight) for name, weight in weights.items()}
    of = {name: linear(3, data[name], len(weights[name]), WIDTH, gated=name == "gate_up") for name in data}
    ones = numpy.ones(WIDTH, numpy.float32)
    norm = ones.ctypes.data
    layer = LayerStruct(norm, of["qkv"], None, None, None, of["out"], None, norm, of["gate_up"], of["down"], None, 0)
    layers = (LayerStruct * 1)(layer)
    sizes = (1, WIDTH, HEADS, 1, HEAD_DIM, WIDTH, 0, 0, 0)
    model = ModelStruct(*sizes, EPSILON, HEAD_DIM**-0.5, 0.0, 1.0, 1.0, of["embedding"], norm, layers)
    positions, table = numpy.arange(TOKENS), numpy.array([2, 0], numpy.int32)
    slots = table[positions // 16].astype(numpy.int64) * 16 + positions % 16
    starts = numpy.array([0, TOKENS], numpy.int32)
    keys, values = numpy.zeros((2, 3, 16 * HEAD_DIM), numpy.uint16)
    out = numpy.empty((TOKENS, WIDTH), numpy.float32)
    arrays = (positions, positions, slots, starts, table, keys, values)
    step = StepStruct(TOKENS, 1, len(table), *[array.ctypes.data for array in arrays], keys[0].size)
    library.candor_forward(engine, ctypes.byref(model), ctypes.byref(step), out.ctypes.data)
    return out


def expected_hidden_states() -> Floats:
    """The same without kernels; keys and values are not rounded here."""
    weights = model_weights()
    hidden = weights["embedding"][:TOKENS]

    def normed(x: Floats) -> Floats:
        return numpy.asarray(x / numpy.sqrt((x * x).mean(1, keepdims=True) + EPSILON), numpy.float32)

    query, key, value = numpy.split(normed(hidden) @ weights["qkv"].T, [HEADS * HEAD_DIM, (HEADS + 1) * HEAD_DIM], 1)
    scores = numpy.einsum("thd,sd->hts", query.reshape(TOKENS, HEADS, HEAD_DIM), key) * HEAD_DIM**-0.5
    weigh = numpy.exp(scores) * numpy.tri(TOKENS)
    attended = numpy.einsum("hts,sd->thd", weigh / weigh.sum(2, keepdims=True), value).reshape(TOKENS, -1)
    hidden = hidden + attended.astype(numpy.float32) @ weights["out"].T
    gate, up = normed(hidden) @ weights["gate"].T, normed(hidden) @ weights["up"].T
    return normed(hidden + (gate / (1.0 + numpy.exp(-gate)) * up) @ weights["down"].T)


def likely_ids(library: ctypes.CDLL, engine: int) -> list[int]:
    """Of a row of logits in which one stands out."""
    logits = numpy.zeros(100, numpy.float32)
    logits[37] = 50.0
    temperature, top_p, min_p = numpy.array([[1.0], [0.9], [0.0]], numpy.float32)
    top_k, keys = numpy.zeros(1, numpy.int64), numpy.array([1, 2], numpy.uint32)
    ids, count = numpy.zeros(16, numpy.int64), numpy.zeros(1, numpy.int32)
    arrays = (temperature, top_k, top_p, min_p, keys, ids, count)
    draws = DrawsStruct(logits.ctypes.data, 100, 1, 100, 16, *[array.ctypes.data for array in arrays])
    library.candor_contenders(engine, ctypes.byref(draws))
    return [int(winner) for winner in ids[: count[0]]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
