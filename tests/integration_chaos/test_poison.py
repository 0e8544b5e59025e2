"""A request that kills whoever computes it: found among its batchmates, and failed alone."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.servers import Server
from tests.integration_chaos.conftest import EXACT, PATIENT
from tests.integration_chaos.poisoned_scheduler import POISON_ID

HERE = Path(__file__).parent
HANG_S = 90.0


@contextlib.contextmanager
def poisoned(model: Path, folder: Path) -> Iterator[Server]:
    flags = ("--model-path", str(model), "--served-model-name", "tiny")
    server = Server(folder, *flags, *EXACT, *PATIENT, script=HERE / "poisoned_launch.py")
    try:
        yield server.wait_ready()
    finally:
        server.close()


@pytest.mark.parametrize("role", ["scheduler", "detokenizer"])
def test_the_guilty_one_fails_and_its_batchmates_finish(
    roomy_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """A token kills the scheduler that computes it, or the detokenizer that it is drawn for."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(HERE.parents[1]), str(HERE))))
    monkeypatch.setenv("POISONED_ROLE", role)
    guilty = (
        {"prompt": [30, POISON_ID, 31]} if role == "scheduler" else {"prompt": [30], "logit_bias": {POISON_ID: 100}}
    )
    with poisoned(roomy_llama_dir, tmp_path) as server:
        batchmates_finish(server, guilty)
        assert server.errors().count(f"{role} 0 was ended by SIGKILL") == 3


def batchmates_finish(server: Server, poison: dict[str, Any]) -> None:
    """The innocent ones are in the batch of both crashes that make suspects of them: the guilty one needs a step for each."""
    body: dict[str, Any] = {
        "max_tokens": 700,
        "temperature": 0,
        "ignore_eos": True,
        "logit_bias": {str(POISON_ID): -100},
    }
    prompts = [[token, token + 1, token + 2] for token in (40, 50, 60)]

    async def main() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as client:

            async def ask(fields: dict[str, Any]) -> httpx.Response:
                return await client.post("/v1/completions", json=body | fields)

            undisturbed = [await ask({"prompt": prompt}) for prompt in prompts]
            calls = [asyncio.create_task(ask({"prompt": prompt})) for prompt in prompts]
            guilty = await ask(poison)
            assert guilty.status_code == 500
            assert guilty.json()["error"]["code"] == "engine_crashed"
            for before, call in zip(undisturbed, calls, strict=True):
                after = await call
                assert after.status_code == 200
                assert after.json()["choices"][0]["text"] == before.json()["choices"][0]["text"]
            assert (await client.get("/health_generate")).status_code == 200

    asyncio.run(main())
