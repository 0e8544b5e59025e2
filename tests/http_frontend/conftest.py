"""Fixtures of the front end's tests."""

from pathlib import Path
from typing import Any

import pytest

from runtime.status_board import StatusBoard
from tests.http_frontend.fakes import Served, make_config


@pytest.fixture
def serve(tmp_path: Path) -> Any:
    """Makes a Served with flags of one's own; everything is closed afterwards."""
    opened: list[tuple[Served, StatusBoard]] = []

    def make(**flags: Any) -> Served:
        folder = tmp_path / str(len(opened))
        folder.mkdir()
        board = StatusBoard.create(folder / "board", 6)
        for slot, role in enumerate(("supervisor", "http", "tokenizer", "scheduler", "detokenizer")):
            writer = board.slot(slot)
            writer.claim(role, 0, 0, 1)
            writer.update(state="ready")
        served = Served(make_config(folder, **flags), board)
        opened.append((served, board))
        return served

    yield make
    for served, board in opened:
        served.front.close()
        board.close()


@pytest.fixture
def served(serve: Any) -> Served:
    made = serve()
    assert isinstance(made, Served)
    return made
