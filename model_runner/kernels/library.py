"""The compiled kernels: built once into a cache, loaded through ctypes (which lets go of Python's lock during a call)."""

import ctypes
import hashlib
import logging
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from runtime.environment import child_environment, read_environment
from runtime.start_error import StartError

logger = logging.getLogger(__name__)

SOURCE_DIR = Path(__file__).parent / "source"
COMPILE_FLAGS = (
    "-O3",
    "-std=c++20",
    "-march=native",
    "-ffp-contract=off",  # only the fused operations that the source spells out, so that every tile rounds alike
    "-fno-math-errno",
    "-shared",
    "-fPIC",
    "-pthread",
)
GCC_FLAGS = ("-fno-tree-reassoc",)  # regrouping sums of integers is exact, but costs more registers than there are
REQUIRED_CPU_FLAGS = frozenset({"avx2", "fma", "f16c"})
NO_PROCESSOR = f"the CPU kernels need an x86-64 processor with {', '.join(sorted(REQUIRED_CPU_FLAGS))}"
NO_COMPILER = "there is no C++ compiler (CXX, or else g++ or clang++) to build the CPU kernels with"
UNSOUND = "the CPU kernels that were compiled here don't work on this processor"
CHECK_TIMEOUT_S = 60.0


class KernelsUnavailable(StartError):
    """The CPU engine can't run on this host; the message is one sentence that says why."""


class LinearStruct(ctypes.Structure):
    """`candor::Linear`."""

    _fields_ = (
        ("form", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("inputs", ctypes.c_int32),
        ("gated", ctypes.c_int32),
        ("activation_bits", ctypes.c_int32),
        ("data", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class LayerStruct(ctypes.Structure):
    """`candor::Layer`."""

    _fields_ = (
        ("input_norm", ctypes.c_void_p),
        ("qkv", LinearStruct),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("rotary", ctypes.c_void_p),
        ("attention_out", LinearStruct),
        ("post_attention_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("gate_up", LinearStruct),
        ("down", LinearStruct),
        ("post_mlp_norm", ctypes.c_void_p),
        ("window", ctypes.c_int32),
    )


class ModelStruct(ctypes.Structure):
    """`candor::Model`."""

    _fields_ = (
        ("layer_count", ctypes.c_int32),
        ("hidden", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("kv_heads", ctypes.c_int32),
        ("dim", ctypes.c_int32),
        ("intermediate", ctypes.c_int32),
        ("rotary_dim", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("head_norm", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
        ("attention_scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
        ("embedding_multiplier", ctypes.c_float),
        ("residual_multiplier", ctypes.c_float),
        ("embedding", LinearStruct),
        ("final_norm", ctypes.c_void_p),
        ("layers", ctypes.POINTER(LayerStruct)),
    )


class StepStruct(ctypes.Structure):
    """`candor::Step`."""

    _fields_ = (
        ("tokens", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("max_pages", ctypes.c_int32),
        ("ids", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("query_starts", ctypes.c_void_p),
        ("page_tables", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("page_stride", ctypes.c_int64),
    )


class DrawsStruct(ctypes.Structure):
    """`candor::Draws`."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("vocabulary", ctypes.c_int32),
        ("capacity", ctypes.c_int32),
        ("temperatures", ctypes.c_void_p),
        ("top_k", ctypes.c_void_p),
        ("top_p", ctypes.c_void_p),
        ("min_p", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
    )


STRUCTS = (LinearStruct, LayerStruct, ModelStruct, StepStruct, DrawsStruct)
"""In the order of `candor_sizes`."""


def cpu_flags() -> frozenset[str]:
    """Instruction-set flags of this host's first processor, as the kernel names them (empty where it does not say)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def missing_for_build(processor_flags: frozenset[str]) -> str | None:
    """What this host lacks to build and run the kernels, or None."""
    if platform.machine() != "x86_64" or not processor_flags >= REQUIRED_CPU_FLAGS:
        return NO_PROCESSOR
    if _find_compiler() is None:
        return NO_COMPILER
    return None


def _find_compiler() -> str | None:
    named = read_environment().compiler
    return shutil.which(named) if named else shutil.which("g++") or shutil.which("clang++")


def build_library(cache_dir: Path, more_flags: tuple[str, ...] = ()) -> Path:
    """Path of the shared library for these sources and this processor, compiled (some 10 s) if the cache lacks it.

    Raises KernelsUnavailable without a C++ compiler or the needed instructions, when compilation fails, or when what was
    compiled does not compute right on this processor. The cache holds only what did.
    """
    if platform.machine() != "x86_64" or not cpu_flags() >= REQUIRED_CPU_FLAGS:
        raise KernelsUnavailable(NO_PROCESSOR)
    flags = (*COMPILE_FLAGS, *more_flags)
    # A cache folder may be shared: between hosts, or between containers whose C libraries differ.
    key = hashlib.sha256(" ".join([*flags, *GCC_FLAGS, *sorted(cpu_flags()), *platform.libc_ver()]).encode())
    for source in sorted(SOURCE_DIR.iterdir()):
        key.update(source.name.encode() + source.read_bytes())
    target = cache_dir / f"candor-kernels-{key.hexdigest()[:20]}.so"
    if not target.exists():
        _compile(target, flags)
    return target


def _compile(target: Path, flags: tuple[str, ...]) -> None:
    compiler = _find_compiler()
    if compiler is None:
        raise KernelsUnavailable(NO_COMPILER)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / target.name
        if _knows(compiler, GCC_FLAGS):
            flags = (*GCC_FLAGS, *flags)
        command = [compiler, *flags, str(SOURCE_DIR / "decoder.cpp"), "-o", str(built)]
        logger.info("compiling the CPU kernels for this processor, once")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KernelsUnavailable(f"the CPU kernels did not compile: {done.stderr.strip()[-500:]}")
        _check(built)
        built.replace(target)  # atomic: two processes that build at once end with one whole file


def _knows(compiler: str, flags: tuple[str, ...]) -> bool:
    """clang refuses the flags that only GCC has."""
    command = [compiler, *flags, "-E", "-x", "c++", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _check(built: Path) -> None:
    """In a process of its own, which an illegal instruction may end."""
    command = [sys.executable, "-P", "-m", "model_runner.kernels.check", str(built)]
    try:
        done = subprocess.run(
            command, env=child_environment(), capture_output=True, text=True, check=False, timeout=CHECK_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise KernelsUnavailable(f"{UNSOUND}: no answer within {CHECK_TIMEOUT_S:.0f} s") from None
    if done.returncode < 0:
        raise KernelsUnavailable(f"{UNSOUND}: {signal.Signals(-done.returncode).name}")
    if done.returncode != 0:
        last_line = done.stderr.strip().rpartition("\n")[2]
        raise KernelsUnavailable(f"{UNSOUND}: {last_line or done.returncode}")


def build_refusal(cache_dir: Path) -> str | None:
    """Why the kernels can't be had although nothing is missing, None once they are in the cache."""
    try:
        build_library(cache_dir)
    except KernelsUnavailable as error:
        logger.warning("%s", error)
        return str(error)
    return None


def load_library(cache_dir: Path, more_flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The kernels for this processor, built if need be. Raises what `build_library` does."""
    return open_library(build_library(cache_dir, more_flags))


def open_library(path: Path) -> ctypes.CDLL:
    """The kernels with their signatures declared; struct layouts are checked against the compiler's."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:  # another C++ runtime, or a cache folder that nothing may be executed from
        raise KernelsUnavailable(f"the compiled CPU kernels can't be loaded: {error}") from None
    library.candor_create.restype = ctypes.c_void_p
    library.candor_create.argtypes = [ctypes.c_int]
    library.candor_destroy.restype = None
    library.candor_destroy.argtypes = [ctypes.c_void_p]
    library.candor_forward.restype = None
    library.candor_forward.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(ModelStruct),
        ctypes.POINTER(StepStruct),
        ctypes.c_void_p,
    ]
    library.candor_linear.restype = None
    library.candor_linear.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(LinearStruct),
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
    ]
    library.candor_contenders.restype = None
    library.candor_contenders.argtypes = [ctypes.c_void_p, ctypes.POINTER(DrawsStruct)]
    for which, struct in enumerate(STRUCTS):
        if library.candor_sizes(which) != ctypes.sizeof(struct):
            raise KernelsUnavailable(f"{struct.__name__} does not match the compiled layout")
    return library
