"""How xgrammar is loaded: without transformers, of which it names three classes as it loads and which nothing here uses.

The real one costs 0.9 s of a start, and some 20 MB, in each process that has grammars.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

_NEEDLESS = "transformers"


class _StandIn(ModuleType):
    """Has a class of any name: xgrammar annotates a constructor with some that is never called here, and derives a part
    of transformers' own generation loop from another."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def load_library() -> None:
    """Loads xgrammar if it isn't there. To be called while no other thread may import transformers; where that has been
    imported, xgrammar gets it."""
    if _NEEDLESS in sys.modules:
        importlib.import_module("xgrammar")
        return
    sys.modules[_NEEDLESS] = _StandIn(_NEEDLESS)
    try:
        importlib.import_module("xgrammar")
    finally:
        del sys.modules[_NEEDLESS]
