"""Fixtures of the front end's tests."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from runtime.status_board import StatusBoard
from tests.http_frontend.fakes import Served, make_config


@contextmanager
def open_served(folder: Path, **flags: Any) -> Iterator[Served]:
    """A front end with flags of one's own, all its processes ready."""
    folder.mkdir()
    board = StatusBoard.create(folder / "board", 6)
    for slot, role in enumerate(("supervisor", "http", "tokenizer", "scheduler", "detokenizer")):
        writer = board.slot(slot)
        writer.claim(role, 0, 0, 1)
        writer.update(state="ready")
    served = Served(make_config(folder, **flags), board)
    yield served
    served.front.close()
    board.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    """Makes a Served with flags of one's own; everything is closed afterwards."""
    with ExitStack() as opened:
        count = iter(range(100))
        yield lambda **flags: opened.enter_context(open_served(tmp_path / str(next(count)), **flags))


@pytest.fixture
def served(serve: Any) -> Served:
    made = serve()
    assert isinstance(made, Served)
    return made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for a whole module, for tables of tests that leave nothing behind."""
    with open_served(tmp_path_factory.mktemp("shared") / "0") as served:
        yield served
