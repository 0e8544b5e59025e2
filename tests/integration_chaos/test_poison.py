"""A request that kills whoever computes it: found among its batchmates, and failed alone."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.servers import Server
from tests.integration_chaos.conftest import EXACT, PATIENT
from tests.integration_chaos.poisoned_scheduler import POISON_ID

HERE = Path(__file__).parent
HANG_S = 90.0


@pytest.fixture
def poisoned(roomy_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(HERE.parents[1]), str(HERE))))
    flags = ("--model-path", str(roomy_llama_dir), "--served-model-name", "tiny")
    server = Server(tmp_path, *flags, *EXACT, *PATIENT, script=HERE / "poisoned_launch.py")
    yield server.wait_ready()
    server.close()


def test_the_guilty_one_fails_and_its_batchmates_finish(poisoned: Server) -> None:
    """The innocent ones are long enough to be in the batch of both crashes that make suspects of them."""
    body = {"max_tokens": 700, "temperature": 0, "ignore_eos": True, "logit_bias": {str(POISON_ID): -100}}
    prompts = [[token, token + 1, token + 2] for token in (40, 50, 60)]

    async def main() -> None:
        async with httpx.AsyncClient(base_url=poisoned.url, timeout=HANG_S) as client:

            async def ask(prompt: list[int]) -> httpx.Response:
                return await client.post("/v1/completions", json=body | {"prompt": prompt})

            undisturbed = [await ask(prompt) for prompt in prompts]
            calls = [asyncio.create_task(ask(prompt)) for prompt in prompts]
            guilty = await ask([30, POISON_ID, 31])
            assert guilty.status_code == 500
            assert guilty.json()["error"]["code"] == "engine_crashed"
            for before, call in zip(undisturbed, calls, strict=True):
                after = await call
                assert after.status_code == 200
                assert after.json()["choices"][0]["text"] == before.json()["choices"][0]["text"]
            assert (await client.get("/health_generate")).status_code == 200

    asyncio.run(main())
    assert poisoned.errors().count("scheduler 0 was ended by SIGKILL") == 3
