"""The vendored signatures of GPU libraries, and a check that binds calls to them."""

import inspect
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def read_signatures(library: str) -> dict[str, inspect.Signature]:
    """By qualified name, as extract.py found them in the library's wheel."""
    content = json.loads((FOLDER / f"{library}.json").read_text())
    return {name: _signature(parameters) for name, parameters in content["signatures"].items()}


def _signature(parameters: list[list[Any]]) -> inspect.Signature:
    return inspect.Signature(
        [
            inspect.Parameter(name, getattr(inspect.Parameter, kind), default=None if has_default else inspect._empty)
            for name, kind, has_default in parameters
        ]
    )


def bind(signatures: dict[str, inspect.Signature], name: str, *arguments: Any, **keywords: Any) -> dict[str, Any]:
    """The call's arguments by parameter name; TypeError if the real function would not take the call."""
    return dict(signatures[name].bind(*arguments, **keywords).arguments)
