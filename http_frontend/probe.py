"""GET /health_generate: a real token through every process, on every replica."""

import asyncio
import time
import uuid

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from http_frontend.front import Front, front_of
from http_frontend.health import current_health
from protocol.errors import RequestError
from protocol.ids import pack_ids
from protocol.requests import GenerateRequest, TokensPrompt
from protocol.sampling import SamplingParameters

PROBE_TIMEOUT_S = 30.0


async def health_generate(request: Request) -> Response:
    """200 with the time of each replica, or 503 with the hop that did not answer."""
    front = front_of(request)
    replicas = front.sender.peers("scheduler")
    if not replicas:
        found = current_health(front)
        verdict = "dead" if found.verdict == "ok" else found.verdict
        return JSONResponse({"status": verdict, "troubles": ["no scheduler is running", *found.troubles]}, 503)
    timeout_s = min(PROBE_TIMEOUT_S, front.config.args.stall_timeout_s)
    probes = await asyncio.gather(*(_probe(front, replica, timeout_s) for replica in replicas))
    troubles = [trouble for trouble, _ in probes if trouble]
    body = {"status": "stuck" if troubles else "ok", "troubles": troubles}
    seconds = {str(replica): round(elapsed, 4) for replica, (_, elapsed) in zip(replicas, probes, strict=True)}
    return JSONResponse(body | {"replica_seconds": seconds}, 503 if troubles else 200)


async def _probe(front: Front, replica: int, timeout_s: float) -> tuple[str, float]:
    """(what went wrong or "", seconds)."""
    began = time.monotonic()
    admitted = False
    model = front.config.model
    prompt_id = model.bos_token_id if model.bos_token_id is not None else 0
    request = GenerateRequest(
        request_id=f"{front.worker}-probe-{uuid.uuid4().hex}",
        model=front.models.names[0],
        prompt=TokensPrompt(pack_ids([prompt_id])),
        sampling=SamplingParameters(temperature=0.0, max_tokens=1, ignore_eos=True),
        arrival_s=time.time(),
        probe=True,
        replica=replica,
    )
    try:
        exchange = front.in_flight.open([request])
    except RequestError as error:
        return error.info.message, time.monotonic() - began
    try:
        async with asyncio.timeout(timeout_s):
            await exchange.admitted()
            admitted = True
            while not exchange.finished:
                await exchange.take()
    except TimeoutError:
        return _silent_hop(front, replica, admitted, timeout_s), time.monotonic() - began
    except RequestError as error:
        return f"scheduler {replica}: {error.info.message}", time.monotonic() - began
    finally:
        exchange.close()
    return "", time.monotonic() - began


def _silent_hop(front: Front, replica: int, admitted: bool, timeout_s: float) -> str:
    """Which process of the ring it was, as its heartbeat shows."""
    ring = ("scheduler", "detokenizer") if admitted else ("tokenizer", "scheduler", "detokenizer")
    concerned = [
        status
        for status in front.board.read_all()
        if status.role in ring and (status.role != "scheduler" or status.index == replica)
    ]
    if not concerned:
        return f"replica {replica}: no answer within {timeout_s:g} s"
    oldest = max(concerned, key=lambda status: max(status.heartbeat_age_s, status.stalled_s))
    age_s = max(oldest.heartbeat_age_s, oldest.stalled_s)
    return f"{oldest.role} {oldest.index}: no answer within {timeout_s:g} s, no progress for {age_s:.1f} s"
