"""Which node this is, and who sits on it."""

from typing import Any

import msgspec
import pytest

from runtime.environment import read_environment
from runtime.nodes import host_and_port, own_address, place_node
from runtime.server_args import ServerArgs
from runtime.start_error import StartError
from runtime.topology import seats_of
from tests.samples import make_config

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "1",
}
LEADER_WORKER_SET = {"LWS_LEADER_ADDRESS": "pod-0.group", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}


def place(variables: dict[str, str], **flags: Any) -> tuple[int, int, str | None]:
    placed = place_node(ServerArgs(**flags), read_environment(variables))
    return placed.nnodes, placed.node_rank, placed.dist_init_addr


@pytest.mark.parametrize(
    ("variables", "flags", "wanted"),
    [
        ({}, {}, (1, 0, None)),
        ({}, {"tp_size": 4, "nnodes": 2, "node_rank": 1, "dist_init_addr": "a:5"}, (2, 1, "a:5")),
        ({}, {"tp_size": 2, "nnodes": 2, "dist_init_addr": "a"}, (2, 0, "a:29600")),
        (TORCHRUN, {"tp_size": 2}, (2, 1, "10.0.0.1:29401")),
        (TORCHRUN, {"tp_size": 2, "nnodes": 2, "node_rank": 0, "dist_init_addr": "b:6"}, (2, 0, "b:6")),
        (LEADER_WORKER_SET, {"tp_size": 8}, (2, 1, "pod-0.group:29600")),
        (LEADER_WORKER_SET | {"LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0"}, {}, (1, 0, None)),
        ({"WORLD_SIZE": "8", "RANK": "3"}, {}, (1, 0, None)),
    ],
)
def test_a_node_finds_its_place(
    variables: dict[str, str], flags: dict[str, Any], wanted: tuple[int, int, str | None]
) -> None:
    assert place(variables, **flags) == wanted


@pytest.mark.parametrize(
    ("variables", "flags", "message"),
    [
        ({}, {"node_rank": 1}, "without --nnodes"),
        ({}, {"dist_init_addr": "a:1"}, "without --nnodes"),
        ({}, {"tp_size": 2, "nnodes": 2}, "needs --dist-init-addr"),
        ({}, {"tp_size": 2, "nnodes": 2, "node_rank": 2, "dist_init_addr": "a:1"}, "must be below --nnodes 2"),
        ({}, {"tp_size": 3, "nnodes": 2, "dist_init_addr": "a:1"}, "can't be dealt evenly over 2 nodes"),
        ({}, {"tp_size": 2, "dp_size": 2, "nnodes": 2, "dist_init_addr": "a:1"}, "--dp-size goes with one node"),
        ({}, {"tp_size": 2, "nnodes": 2, "dist_init_addr": "a:port"}, "is not HOST:PORT"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "2"}, {"tp_size": 2}, "--nproc-per-node 1"),
    ],
)
def test_what_cannot_hold_together_is_told(variables: dict[str, str], flags: dict[str, Any], message: str) -> None:
    with pytest.raises(StartError, match=message):
        place(variables, **flags)


@pytest.mark.parametrize(
    ("address", "wanted"),
    [("h", ("h", 29600)), ("h:1", ("h", 1)), ("[::1]:9", ("[::1]", 9)), ("::1", ("::1", 29600))],
)
def test_addresses(address: str, wanted: tuple[str, int]) -> None:
    assert host_and_port(address) == wanted


def test_the_own_address_is_the_one_that_leads_there() -> None:
    assert own_address("127.0.0.1:29600") == "127.0.0.1"
    with pytest.raises(StartError, match="no way to that host"):
        own_address("no-such-host.invalid:1")


def test_every_node_has_its_ranks_and_the_first_one_everything_else() -> None:
    flags: dict[str, Any] = {"tp_size": 4, "nnodes": 2, "dist_init_addr": "127.0.0.1:1"}
    nodes = [make_config(ServerArgs(**flags, node_rank=rank)) for rank in (0, 1)]
    first, second = ([(seat.role, seat.index) for seat in seats_of(config)] for config in nodes)
    assert first == [("scheduler", 0), ("rank", 1), ("tokenizer", 0), ("detokenizer", 0), ("http", 0)]
    assert second == [("rank", 2), ("rank", 3)]
    alone = msgspec.structs.replace(nodes[0], args=ServerArgs(tp_size=2, dp_size=2))
    assert [(seat.role, seat.index) for seat in seats_of(alone)][:4] == [
        ("scheduler", 0),
        ("rank", 1),
        ("scheduler", 1),
        ("rank", 3),
    ]
