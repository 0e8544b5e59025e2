"""Every environment variable that Candor reads, typed. One that does not parse stops the start."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runtime.start_error import StartError

_PACKAGE_ROOT = Path(__file__).resolve().parents[1]


def _path(text: str) -> Path:
    if not text.strip():
        raise ValueError("it is empty")
    return Path(text).expanduser()


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("it must be at least 1")
    return value


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("it must not be negative")
    return value


@dataclass(frozen=True)
class Environment:
    """What the environment says. Settings of other libraries (HF_HUB_OFFLINE, HF_ENDPOINT, PIP_*, ...) are theirs to read.

    `cache_folder` (CANDOR_CACHE) keeps fetched models and converted tokenizers. `run_folder` (CANDOR_RUN_FOLDER) is where
    the private run directory is made. `omp_threads` (OMP_NUM_THREADS) are the compute threads unless --threads says so.
    `cuda_visible_devices` (CUDA_VISIBLE_DEVICES) is torch's to interpret; here an empty one means: no GPU.
    `compiler` (CXX) compiles the CPU kernels; None: g++ or clang++, whichever is there.
    `supervisor_pid` (CANDOR_SUPERVISOR_PID) is set by the supervisor for its children: whom they must not survive.

    `lws_...` (LWS_LEADER_ADDRESS, LWS_GROUP_SIZE, LWS_WORKER_INDEX) are a Kubernetes LeaderWorkerSet's word on which pod
    this is; the fields from `torchelastic_run_id` on (TORCHELASTIC_RUN_ID, MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE,
    LOCAL_WORLD_SIZE) are torchrun's.
    """

    cache_folder: Path = Path("~/.cache/candor")
    run_folder: Path | None = None
    omp_threads: int | None = None
    cuda_visible_devices: str | None = None
    compiler: str | None = None
    supervisor_pid: int | None = None
    lws_leader_address: str | None = None
    lws_group_size: int = 1
    lws_worker_index: int = 0
    torchelastic_run_id: str | None = None
    master_addr: str = "127.0.0.1"
    master_port: int = 29500
    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1


_VARIABLES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "CANDOR_CACHE": ("cache_folder", _path),
    "CANDOR_RUN_FOLDER": ("run_folder", _path),
    "OMP_NUM_THREADS": ("omp_threads", _positive),
    "CUDA_VISIBLE_DEVICES": ("cuda_visible_devices", str),
    "CXX": ("compiler", str),
    "CANDOR_SUPERVISOR_PID": ("supervisor_pid", _positive),
    "LWS_LEADER_ADDRESS": ("lws_leader_address", str),
    "LWS_GROUP_SIZE": ("lws_group_size", _positive),
    "LWS_WORKER_INDEX": ("lws_worker_index", _not_negative),
    "TORCHELASTIC_RUN_ID": ("torchelastic_run_id", str),
    "MASTER_ADDR": ("master_addr", str),
    "MASTER_PORT": ("master_port", _positive),
    "RANK": ("rank", _not_negative),
    "WORLD_SIZE": ("world_size", _positive),
    "LOCAL_WORLD_SIZE": ("local_world_size", _positive),
}


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Parses the variables (default: `os.environ`); StartError names the one that is wrong."""
    source = os.environ if variables is None else variables
    values: dict[str, Any] = {}
    for name, (field, parse) in _VARIABLES.items():
        text = source.get(name)
        if text is None:
            continue
        try:
            values[field] = parse(text)
        except ValueError as error:
            raise StartError(f"the environment variable {name} can't be read as given ({text!r}): {error}") from None
    environment = Environment(**values)
    return replace(environment, cache_folder=environment.cache_folder.expanduser())


def child_environment(**changes: str) -> dict[str, str]:
    """This process's variables and the changes, for a Python child that finds our packages wherever it is started."""
    search_path = filter(None, (str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")))
    return os.environ | {"PYTHONPATH": os.pathsep.join(search_path)} | changes
