import ctypes
from pathlib import Path

import pytest

from model_runner.kernels.library import KernelsUnavailable, build_library, load_library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    try:
        return load_library(Path("~/.cache/candor/kernels").expanduser())
    except KernelsUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def emulating_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels written for AVX-512 VNNI, with that one instruction computed in plain C++."""
    try:
        built = build_library(Path("~/.cache/candor/kernels").expanduser(), ("-DCANDOR_EMULATE_VNNI", "-mno-avx512f"))
    except KernelsUnavailable as error:
        pytest.skip(str(error))
    return load_library(built.parent, ("-DCANDOR_EMULATE_VNNI", "-mno-avx512f"))
