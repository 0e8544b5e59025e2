"""Two nodes on one host: each its own launch.py, plans over TCP, one answer; and a node's rank that dies comes back."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.servers import Server, serving
from tests.integration_parallel.test_servers import complete, flags, text_of


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def nodes(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    address = f"127.0.0.1:{free_port()}"
    common = flags(tiny_llama_dir, "--tp-size", "2", "--nnodes", "2", "--dist-init-addr", address)
    with ExitStack() as stack:
        started = [
            stack.enter_context(serving(tmp_path_factory.mktemp("node"), *common, "--node-rank", str(rank)))
            for rank in (0, 1)
        ]
        yield started[0].wait_ready(), started[1]


def rank_1(node: Server) -> int:
    """The process of the only child of a node without HTTP."""
    children = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


def test_two_nodes_serve_one_model(nodes: tuple[Server, Server]) -> None:
    first, second = nodes
    second.wait_for(lambda: "Node 1 of 2 is ready" in second.output(), "the second node's ready line")
    before = text_of(complete(first, "the quick brown fox"))
    os.kill(rank_1(second), signal.SIGKILL)
    assert text_of(complete(first, "the quick brown fox")) == before
    assert "rank 1 was ended by SIGKILL" in second.errors()
    assert "lost the others" in first.errors() or "has started again" in first.errors()
