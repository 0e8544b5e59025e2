"""Figures: counted per token, added up over workers, written as Prometheus reads them."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest

from http_frontend.metrics import Metrics
from protocol.ids import pack_ids
from protocol.outputs import Finish, TextOutput
from tests.http_frontend.fakes import PROMPT_TOKENS, Served, chat_body


def samples(text: str) -> dict[str, float]:
    return {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")
    }


def test_a_chat_is_counted(served: Served) -> None:
    served.chat()
    served.chat(temperature=9)
    served.front.board.slot(3).update(running=2, waiting=1, total_pages=64, free_pages=40)
    text = served.call("GET", "/metrics").text
    found = samples(text)
    label = '{model_name="tiny"}'
    assert found[f"candor_generation_tokens_total{label}"] == 3
    assert found[f"candor_prompt_tokens_total{label}"] == PROMPT_TOKENS
    assert found[f"candor_cached_tokens_total{label}"] == 4
    assert found['candor_num_requests_running{model_name="tiny",replica="0"}'] == 2
    assert found['candor_kv_pages_free{model_name="tiny",replica="0"}'] == 40
    assert found['candor_http_requests_total{endpoint="chat",outcome="2xx"}'] == 1
    assert found['candor_http_requests_total{endpoint="chat",outcome="4xx"}'] == 1
    assert found['candor_finished_choices_total{model_name="tiny",reason="stop"}'] == 1
    assert found[f"candor_time_to_first_token_seconds_count{label}"] == 1
    assert found[f"candor_inter_token_latency_seconds_count{label}"] == 2
    assert found[f"candor_e2e_request_latency_seconds_count{label}"] == 1
    assert found['candor_logit_bias_bytes{model_name="tiny",replica="0"}'] == 512
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M):
        assert kind != "counter" or name.endswith("_total")


def test_workers_are_added_up_and_a_restart_loses_nothing(served: Served) -> None:
    folder = Path(served.front.config.run_dir)
    served.front.metrics.generation_tokens.add(5)
    for _ in range(2):
        other = Metrics(folder, 1, "tiny")
        other.generation_tokens.add(10)
        other.close()
    found = samples(served.front.metrics.text(served.front.board, {}).decode())
    assert found['candor_generation_tokens_total{model_name="tiny"}'] == 25


@pytest.mark.parametrize(("latency_s", "bucket"), [(0.0005, "0.001"), (0.001, "0.001"), (0.3, "0.5"), (99.0, "+Inf")])
def test_an_observation_falls_into_its_bucket(served: Served, latency_s: float, bucket: str) -> None:
    output = TextOutput("0-a", 0, 0, "x", pack_ids([1]), 2, Finish("stop"))
    served.front.metrics.on_output(1.0, 2.0, 2.0 + latency_s - 1e-12, output)
    found = samples(served.front.metrics.text(served.front.board, {}).decode())
    counts = {
        name.split('le="')[1].split('"')[0]: value
        for name, value in found.items()
        if name.startswith("candor_inter_token_latency_seconds_bucket")
    }
    assert counts[bucket] == 1 and list(counts.values()).index(1) == list(counts).index(bucket)


def test_no_metrics_when_switched_off(serve: object) -> None:
    served: Served = serve(metrics=False)  # type: ignore[operator]
    assert served.call("GET", "/metrics").status_code == 404


def test_a_proxys_prefix_does_not_hide_the_endpoint(served: Served) -> None:
    async def main() -> str:
        transport = httpx.ASGITransport(app=served.app, root_path="/proxy")
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert (await client.post("/proxy/v1/chat/completions", json=chat_body())).status_code == 200
            return (await client.get("/proxy/metrics")).text

    assert 'candor_http_requests_total{endpoint="chat",outcome="2xx"} 1.0' in asyncio.run(main())
