"""The list of architectures: cheap to import, true, and the same in the documentation."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from model_runner.models.catalogue import ARCHITECTURES, TESTED_TRANSFORMERS, find_architecture, list_models
from model_runner.models.document import document

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("entry", ARCHITECTURES, ids=lambda entry: str(entry.name))
def test_every_entry_can_be_declared_and_compared(entry: object) -> None:
    found = find_architecture(entry.name)  # type: ignore[attr-defined]
    assert found is entry and found is not None
    assert callable(getattr(importlib.import_module(f"model_runner.models.{found.module}"), found.declare))
    assert hasattr(transformers, found.name)


def test_listing_names_everything() -> None:
    text = list_models()
    assert all(entry.name in text for entry in ARCHITECTURES)
    assert "--model-impl transformers" in text


def test_listing_loads_no_torch() -> None:
    code = "import sys; from model_runner.models.catalogue import list_models; list_models(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_documentation_is_current() -> None:
    assert (ROOT / "docs" / "models.md").read_text() == document(), (
        "run `python -m model_runner.models.document docs/models.md`"
    )


def test_documented_version_is_the_tested_one() -> None:
    assert transformers.__version__.split(".")[:2] == TESTED_TRANSFORMERS.split(".")[:2]
