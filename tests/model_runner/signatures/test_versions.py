"""The vendored signatures are those of the versions that constraints/cuda.txt pins."""

import json
from pathlib import Path

import pytest

from tests.model_runner.signatures.binding import FOLDER, bind, read_signatures

ROOT = Path(__file__).parents[3]
PACKAGES = {"flashinfer": "flashinfer-python", "sgl_kernel": "sglang-kernel"}


@pytest.mark.parametrize("library", PACKAGES)
def test_they_move_with_the_pins(library: str) -> None:
    pins = dict(
        line.split("==") for line in (ROOT / "constraints/cuda.txt").read_text().splitlines() if "==" in line[:60]
    )
    vendored = json.loads((FOLDER / f"{library}.json").read_text())
    assert vendored["version"] == pins[PACKAGES[library]], (
        "run tests/model_runner/signatures/extract.py on the new wheel"
    )


def test_a_call_that_the_library_would_refuse_is_refused() -> None:
    signatures = read_signatures("sgl_kernel")
    assert bind(signatures, "rmsnorm", 1, 2, eps=3) == {"input": 1, "weight": 2, "eps": 3}
    for arguments, keywords in (((1,), {}), ((1, 2), {"epsilon": 3}), ((1, 2, 3, 4, 5, 6), {})):
        with pytest.raises(TypeError):
            bind(signatures, "rmsnorm", *arguments, **keywords)
