"""Servers of several ranks and of several replicas: the same answers as one rank's, also through the death of a part."""

import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.servers import Server, serving

LONG_ANSWER = 1500


@pytest.fixture(scope="module")
def model_dir(tiny_llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with room for answers that take seconds."""
    folder = tmp_path_factory.mktemp("long") / "llama"
    shutil.copytree(tiny_llama_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    return folder


def flags(model_dir: Path, *more: str) -> tuple[str, ...]:
    base = ("--model-path", str(model_dir), "--served-model-name", "tiny", "--attention-backend", "torch")
    return (*base, "--dtype", "float32", "--max-total-tokens", "32768", "--threads", "1", *more)


@pytest.fixture(scope="module")
def ranks(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("ranks"), *flags(model_dir, "--tp-size", "2")) as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def replicas(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("replicas"), *flags(model_dir, "--dp-size", "2")) as running:
        yield running.wait_ready()


def complete(server: Server, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 24, "ignore_eos": True} | fields
    response = server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["text"]
    return text


class Streamed:
    """A long answer read in a thread. `begun` is set when its first text is here."""

    def __init__(self, server: Server, prompt: str) -> None:
        self.begun = threading.Event()
        self._server = server
        self._body = {
            "model": "tiny",
            "prompt": prompt,
            "temperature": 0,
            "max_tokens": LONG_ANSWER,
            "ignore_eos": True,
            "stream": True,
        }

    def read(self) -> str:
        text = ""
        with self._server.http.stream("POST", "/v1/completions", json=self._body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    text += "".join(choice["text"] for choice in event["choices"])
                    self.begun.set()
        return text


def states(server: Server) -> dict[int, dict[str, Any]]:
    return {state["index"]: state for state in server.state()["internal_states"]}


def test_ranks_and_replicas_answer_alike(ranks: Server, replicas: Server) -> None:
    for prompt in ("the quick brown fox", "one two three", "x"):
        assert text_of(complete(ranks, prompt)) == text_of(complete(replicas, prompt))
    fields = {"temperature": 0.8, "seed": 11, "frequency_penalty": 0.7, "logit_bias": {"40": 3}, "logprobs": 2}
    ours, theirs = (complete(server, "the quick", **fields)["choices"][0] for server in (ranks, replicas))
    assert ours["text"] == theirs["text"]
    assert ours["logprobs"]["token_logprobs"] == pytest.approx(theirs["logprobs"]["token_logprobs"], abs=1e-4)


def test_a_grammar_binds_under_ranks(ranks: Server) -> None:
    answer = complete(ranks, "yes or no?", regex="(yes|no)", ignore_eos=False, temperature=1, seed=3)
    assert text_of(answer) in ("yes", "no")


def test_a_rank_that_dies_takes_its_replica_down_and_both_come_back(ranks: Server, replicas: Server) -> None:
    prompt = "count to a thousand"
    stream = Streamed(ranks, prompt)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(stream.read)
        assert stream.begun.wait(60)
        before = ranks.pids()
        os.kill(before["rank 1"], signal.SIGKILL)
        text = reading.result(120)
    assert text == text_of(complete(replicas, prompt, max_tokens=LONG_ANSWER))
    after = ranks.pids()
    assert after["rank 1"] != before["rank 1"] and after["scheduler 0"] != before["scheduler 0"]
    assert "rank 1 was ended by SIGKILL" in ranks.errors()


def test_every_replica_reports_for_itself(replicas: Server) -> None:
    loads = replicas.http.get("/v1/loads").json()["loads"]
    assert [load["dp_rank"] for load in loads] == [0, 1]
    assert [load["dp_rank"] for load in replicas.http.get("/get_load").json()] == [0, 1]
    assert sorted(states(replicas)) == [0, 1]


def test_replicas_share_the_work_and_a_prefix_stays_where_it_is_cached(replicas: Server) -> None:
    before = states(replicas)
    words = "the quick brown fox jumps over the lazy dog and then sleeps all day in the warm sun of the garden "
    prefixes = [f"{number} {words * 4}" for number in range(4)]
    cached: Counter[int] = Counter()
    for round_number in range(3):
        for number, prefix in enumerate(prefixes):
            answer = complete(replicas, f"{prefix} {round_number}", max_tokens=2)
            cached[number] += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    after = states(replicas)
    assert all(after[index]["generated_tokens"] > before[index]["generated_tokens"] for index in (0, 1))
    assert all(cached[number] > 0 for number in range(4)), cached


def test_one_replicas_death_sends_its_requests_to_the_other(replicas: Server) -> None:
    prompts = [f"story number {number}" for number in range(4)]
    streams = [Streamed(replicas, prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(streams)) as pool:
        reading = [pool.submit(stream.read) for stream in streams]
        assert all(stream.begun.wait(60) for stream in streams)
        loads = replicas.http.get("/v1/loads").json()["loads"]
        assert all(load["num_running_reqs"] > 0 for load in loads), "both replicas should be at work"
        os.kill(replicas.pids()["scheduler 1"], signal.SIGKILL)
        texts = [future.result(120) for future in reading]
    for prompt, text in zip(prompts, texts, strict=True):
        assert text == text_of(complete(replicas, prompt, max_tokens=LONG_ANSWER))
    replicas.wait_for(lambda: len(states(replicas)) == 2, "the replica is back")
