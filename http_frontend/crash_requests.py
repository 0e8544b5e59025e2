"""What this worker adds to the evidence of a death: the requests that the dead process was at work on."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from http_frontend.exchange import Flight
from protocol.requests import ChatPrompt, GenerateRequest, TextPrompt

logger = logging.getLogger(__name__)


def keep_requests(folder: Path, worker: int, flights: Sequence[Flight], with_texts: bool) -> None:
    """Writes requests-WORKER.json into the death's folder. Without --log-requests it tells parameters and lengths, and
    nothing of what a client wrote. Never fails: evidence is not worth a request."""
    described = [_described(flight, with_texts) for flight in flights]
    try:
        path = folder / f"requests-{worker}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(described), indent=1))
    except OSError as error:
        logger.warning("the requests of this death can't be kept in %s: %s", folder, error)


def _described(flight: Flight, with_texts: bool) -> dict[str, Any]:
    request = flight.request
    described: dict[str, Any] = {
        "request_id": request.request_id,
        "attempt": flight.attempt,
        "crashes": flight.crashes,
        "prompt_tokens": flight.admitted.prompt_tokens if flight.admitted is not None else None,
        "delivered_tokens": flight.delivered_tokens,
        "prompt": f"redacted, {_characters(request)} characters",
        "parameters": _numbers(request),
    }
    if with_texts:
        described["prompt"] = msgspec.to_builtins(request.prompt)
        described["parameters"] = msgspec.to_builtins(request.sampling, str_keys=True)
    return described


def _characters(request: GenerateRequest) -> int:
    prompt = request.prompt
    if isinstance(prompt, TextPrompt):
        return len(prompt.text)
    if isinstance(prompt, ChatPrompt):
        return len(msgspec.json.encode(prompt.messages))
    return len(prompt.ids)


def _numbers(request: GenerateRequest) -> dict[str, Any]:
    """Sampling parameters that can hold no text of the client's."""
    fields = msgspec.to_builtins(request.sampling, str_keys=True)
    return {name: value for name, value in fields.items() if isinstance(value, int | float)} | {"n": request.n}
