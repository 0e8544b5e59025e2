"""What operators and routers ask: the model, the server, its load, its cache, its running requests."""

import dataclasses
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from http_frontend.contract.kinds import refuse
from http_frontend.contract.tokens import ABORT
from http_frontend.front import Front, front_of
from http_frontend.health import current_health
from protocol.control import ControlReply
from protocol.errors import RequestError
from runtime.engine_config import EngineConfig
from runtime.status_board import ProcessStatus

STATE_TIMEOUT_S = 5.0
LOAD_TIMEOUT_S = 0.5
SECRET_FLAGS = ("api_key", "admin_api_key", "ssl_keyfile")
FLUSH_MODES = ("idle", "unlocked", "deferred")


async def model_info(request: Request) -> Response:
    config = front_of(request).config
    return JSONResponse(
        {
            "model_path": config.model.name,
            "served_model_name": config.model.served_names[0],
            "served_model_names": list(config.model.served_names),
            "tokenizer_path": config.args.tokenizer_path or config.model.name,
            "is_generation": True,
            "architectures": [config.model.architecture],
            "model_type": config.model.config.get("model_type"),
            "max_model_len": config.model.context_length,
            "vocab_size": config.model.vocab_size,
            "load_format": config.model.format,
            "tool_call_parser": config.tool_call_parser,
            "reasoning_parser": config.reasoning_parser,
            "has_image_understanding": False,
            "has_audio_understanding": False,
        }
    )


async def server_info(request: Request) -> Response:
    """Every resolved setting, what was decided and why, and what each process says of itself (`?check=1` has the
    schedulers check their books)."""
    front = front_of(request)
    check = request.query_params.get("check") in ("1", "true")
    replies, silent = await front.questions.ask_all(
        "state", {"check": check} if check else {}, ("tokenizer",), STATE_TIMEOUT_S
    )
    config = front.config
    return JSONResponse(
        shown_config(config)
        | {
            "version": config.version,
            "status": current_health(front).verdict,
            "decisions": [list(decision) for decision in config.decisions],
            "processes": [msgspec.to_builtins(status) for status in front.board.read_all()],
            "internal_states": [_described(reply) for reply in replies if reply.role == "scheduler"],
            "tokenizer_managers": [_described(reply) for reply in replies if reply.role == "tokenizer"],
            "silent": silent,
        }
    )


def shown_config(config: EngineConfig) -> dict[str, Any]:
    """The configuration without keys, resolved values over the flags they came from."""
    flags = {name: value for name, value in dataclasses.asdict(config.args).items() if name not in SECRET_FLAGS}
    resolved = {
        name: value
        for name, value in msgspec.structs.asdict(config).items()
        if name not in ("args", "model", "decisions", "run_dir")
    }
    names = {"served_model_name": list(config.model.served_names), "context_length": config.model.context_length}
    return flags | resolved | names


def _described(reply: ControlReply) -> dict[str, Any]:
    return {"index": reply.index, "ok": reply.ok, "message": reply.message} | reply.payload


async def loads(request: Request) -> Response:
    front = front_of(request)
    rows = [_load(front, status) for status in _schedulers(front)]
    return JSONResponse(
        {"timestamp": time.time(), "version": front.config.version, "accelerator": front.config.device, "loads": rows}
    )


async def get_load(request: Request) -> Response:
    """The older form, which routers still ask for."""
    front = front_of(request)
    return JSONResponse(
        [
            {
                "dp_rank": status.index,
                "num_reqs": status.running + status.waiting,
                "num_waiting_reqs": status.waiting,
                "num_tokens": _used_tokens(front, status),
            }
            for status in _schedulers(front)
        ]
    )


def _schedulers(front: Front) -> list[ProcessStatus]:
    return [status for status in front.board.read_all() if status.role == "scheduler"]


def _used_tokens(front: Front, status: ProcessStatus) -> int:
    """Tokens of running requests; pages that only the prefix cache holds count as free."""
    return max(0, status.total_pages - status.free_pages) * front.config.page_size


def _load(front: Front, status: ProcessStatus) -> dict[str, Any]:
    total = status.total_pages * front.config.page_size
    used = _used_tokens(front, status)
    return {
        "dp_rank": status.index,
        "num_running_reqs": status.running,
        "num_waiting_reqs": status.waiting,
        "num_used_tokens": used,
        "num_cached_tokens": status.cached_pages * front.config.page_size,
        "num_total_tokens": total,
        "max_total_num_tokens": total,
        "max_running_requests": front.config.max_running_requests,
        "token_usage": round(used / total, 4) if total else 0.0,
        "steps": status.steps,
    }


async def flush_cache(request: Request) -> Response:
    """Drops what the prefix caches hold. `?timeout=S` waits until nothing runs; `?mode=` is idle, unlocked or deferred."""
    front = front_of(request)
    timeout_s = _seconds(request.query_params.get("timeout"))
    mode = request.query_params.get("mode", "unlocked" if timeout_s is None else "deferred")
    if mode not in FLUSH_MODES:
        refuse("mode", f"must be one of {', '.join(FLUSH_MODES)}")
    arguments = {"mode": mode, "timeout_s": timeout_s or 0.0}
    replies, silent = await front.questions.ask_all("flush_cache", arguments, (), (timeout_s or 0.0) + STATE_TIMEOUT_S)
    failed = [f"{reply.role} {reply.index}: {reply.message}" for reply in replies if not reply.ok]
    troubles = failed + [f"{name}: no answer" for name in silent]
    status = 503 if silent else 400 if failed else 200
    return JSONResponse({"success": not troubles, "message": "; ".join(troubles) or "flushed"}, status)


def _seconds(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        refuse("timeout", "must be seconds from 0 to 3600")
    return seconds


async def abort_request(request: Request) -> Response:
    front = front_of(request)
    review = front.review(request)
    fields = ABORT.check(await front.read(request, review), "", review)
    rid = fields.get("rid") or fields.get("request_id")
    if not rid and not fields.get("abort_all", False):
        raise RequestError("rid: name a request, or set abort_all", param="rid", code="missing_required_parameter")
    front.in_flight.abort(None if fields.get("abort_all", False) else rid)
    return JSONResponse({"success": True})


async def version(request: Request) -> Response:
    return JSONResponse({"version": front_of(request).config.version})


async def metrics(request: Request) -> Response:
    """Prometheus text. What only the schedulers know is asked for briefly; a stuck one does not hold the scrape up."""
    front = front_of(request)
    replies, _ = await front.questions.ask_all("state", {}, (), LOAD_TIMEOUT_S)
    states = {reply.index: reply.payload for reply in replies if reply.role == "scheduler"}
    return Response(front.metrics.text(front.board, states), media_type="text/plain; version=0.0.4; charset=utf-8")
