"""Health that tells the truth: progress, not activity. Read off the status board, so that a probe costs nothing."""

from dataclasses import dataclass, field
from typing import Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from http_frontend.front import Front, front_of
from runtime.status_board import SUPERVISOR_SLOT, ProcessStatus, StatusBoard

Verdict = Literal["ok", "starting", "recovering", "draining", "stuck", "dead"]


@dataclass(frozen=True)
class Health:
    """`troubles` say which part is not well, and since when."""

    verdict: Verdict
    troubles: list[str] = field(default_factory=list)

    @property
    def live(self) -> bool:
        """Recovering is alive: a restart from outside would end the requests that are being resumed."""
        return self.verdict in ("ok", "recovering")


def judge(board: StatusBoard, stall_timeout_s: float) -> Health:
    """Busy is healthy, stuck is not: a loop must beat, and where work is pending, steps must be made."""
    server = board.read(SUPERVISOR_SLOT)
    if server.state == "starting":
        return Health("starting", [f"starting for {server.state_age_s:.0f} s"])
    if server.state == "draining":
        return Health("draining", [f"draining for {server.state_age_s:.0f} s"])
    if server.state == "stopped":
        return Health("dead", [f"stopped {server.state_age_s:.0f} s ago"])
    troubles: list[str] = []
    recovering: list[str] = []
    for status in board.read_all():
        if status.role == server.role:
            continue
        if status.state in ("starting", "recovering", "stopped"):
            recovering.append(f"{_name(status)}: {status.state} for {status.state_age_s:.0f} s")
        elif status.heartbeat_age_s > stall_timeout_s:
            troubles.append(f"{_name(status)}: no sign of life for {status.heartbeat_age_s:.0f} s")
        elif status.stalled_s > stall_timeout_s:
            troubles.append(f"{_name(status)}: {status.pending} pending and no step for {status.stalled_s:.0f} s")
    if server.heartbeat_age_s > stall_timeout_s:
        troubles.append(f"supervisor: no sign of life for {server.heartbeat_age_s:.0f} s")
    if troubles:
        return Health("stuck", troubles)
    if recovering or server.state == "recovering":
        return Health("recovering", recovering)
    return Health("ok")


def _name(status: ProcessStatus) -> str:
    return f"{status.role} {status.index}"


def current_health(front: Front) -> Health:
    if front.in_flight.draining:
        return Health("draining")
    return judge(front.board, front.config.args.stall_timeout_s)


async def health(request: Request) -> Response:
    """Liveness: 200 while the server can go on by itself."""
    found = current_health(front_of(request))
    return JSONResponse({"status": found.verdict, "troubles": found.troubles}, 200 if found.live else 503)


async def ready(request: Request) -> Response:
    """Readiness: 200 while new requests are served at once."""
    found = current_health(front_of(request))
    return JSONResponse({"status": found.verdict, "troubles": found.troubles}, 200 if found.verdict == "ok" else 503)


async def ping(request: Request) -> Response:
    """This process answers; nothing is said of the others."""
    return JSONResponse({"status": "ok"})
