import ctypes
import hashlib
from pathlib import Path

import pytest

from model_runner.kernels.library import cpu_flags, load_library, missing_for_build

CACHE = Path("~/.cache/candor/kernels").expanduser()
AVX512_ON_AVX2 = Path(__file__).parent / "avx512_on_avx2.h"


def has_avx512() -> bool:
    return cpu_flags() >= {"avx512f", "avx512bw", "avx512_vnni"}


def built(*more_flags: str) -> ctypes.CDLL:
    missing = missing_for_build(cpu_flags())
    if missing is not None:
        pytest.skip(missing)
    return load_library(CACHE, more_flags)


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    """The kernels as this machine's users get them."""
    return built()


@pytest.fixture(scope="session")
def avx2_library(library: ctypes.CDLL) -> ctypes.CDLL:
    return built("-mno-avx512f") if has_avx512() else library


@pytest.fixture(scope="session")
def avx512_library(library: ctypes.CDLL) -> ctypes.CDLL:
    """The kernels' AVX-512 code: as it is where there are such instructions, else with those put in terms of AVX2."""
    if has_avx512():
        return library
    revision = hashlib.sha256(AVX512_ON_AVX2.read_bytes()).hexdigest()[:8]
    return built("-include", str(AVX512_ON_AVX2), f"-DHEADER_REVISION=0x{revision}")  # rebuilt when the header changes
