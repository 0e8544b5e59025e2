"""Rank 0's part: plans leave before it computes itself, and a step that one rank can't do is not half done."""

from typing import Any

import pytest
import torch

from model_runner.attention.torch_backend import TorchAttention
from model_runner.parallel.group import OneRank
from model_runner.parallel.leader import LeadingExecutor
from model_runner.parallel.membership import membership_of
from model_runner.runner import ModelRunner
from protocol.control import Shutdown
from protocol.links import INBOXES, decoder
from protocol.plan import BatchPlan
from protocol.sampling import SamplingParameters
from runtime.engine_config import ProcessSpec
from runtime.server_args import ServerArgs
from tests.model_runner.conftest import Driver, TinyModel, make_config

GREEDY = SamplingParameters(temperature=0.0)


class Crowd(OneRank):
    """A group of several as far as anybody asks, whose others always agree."""

    world = 2


def make_runner(model: TinyModel, **settings: Any) -> ModelRunner:
    return ModelRunner(make_config(), model=model, attention=TorchAttention(model.device, model.dtype), **settings)


def test_a_plan_is_sent_before_it_is_run() -> None:
    model = TinyModel()
    runner = make_runner(model)
    happened: list[Any] = []
    inbox = decoder(INBOXES["rank"])

    def send(frame: bytes) -> None:
        happened.append((inbox.decode(frame), len(model.forwards)))

    leader = LeadingExecutor(runner, send)
    driver = Driver(leader)  # type: ignore[arg-type]
    driver.add(0, [5, 6, 7], GREEDY)
    plan = driver.plan()
    leader.launch(plan)
    leader.sample(None)
    driver.learn(plan, leader.collect())
    assert driver.rows[0].outputs == model.greedy([5, 6, 7], 1)
    leader.close()
    (sent, forwards), (last, _) = happened
    assert isinstance(sent, BatchPlan) and sent == plan and forwards == 0
    assert isinstance(last, Shutdown)
    assert leader.statistics()["plan_bytes"] > 0


def test_out_of_memory_is_halved_on_one_rank_and_ends_the_step_on_several() -> None:
    for group, halved in ((OneRank(), True), (Crowd(), False)):
        model = TinyModel()
        model.most_tokens = 4
        driver = Driver(make_runner(model, group=group))
        for slot in range(2):
            driver.add(slot, [5, 6, 7], GREEDY)
        if halved:
            driver.step()
            assert model.forwards == [6, 3, 3]
        else:
            with pytest.raises(torch.OutOfMemoryError):
                driver.step()
            assert model.forwards == [6]


@pytest.mark.parametrize(
    ("role", "index", "rank", "flags", "wanted"),
    [
        ("scheduler", 0, 0, {}, (0, 0, 1, 0)),
        ("scheduler", 3, 0, {"dp_size": 4}, (3, 0, 1, 3)),
        ("scheduler", 1, 0, {"dp_size": 2, "tp_size": 4}, (1, 0, 4, 4)),
        ("rank", 6, 2, {"dp_size": 2, "tp_size": 4}, (1, 2, 4, 6)),
        ("rank", 5, 5, {"tp_size": 8, "nnodes": 2, "node_rank": 1, "dist_init_addr": "a:1"}, (0, 5, 8, 1)),
    ],
)
def test_every_process_has_its_place_and_its_gpu(
    role: Any, index: int, rank: int, flags: dict[str, Any], wanted: tuple[int, int, int, int]
) -> None:
    spec = ProcessSpec(role, index, 1, "", "", "", "", 1, rank=rank)
    member = membership_of(make_config(args=ServerArgs(**flags)), spec)
    assert (member.replica, member.rank, member.world, member.local_index) == wanted
