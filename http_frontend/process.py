"""An HTTP worker: links on one side, uvicorn on the other, one event loop."""

import asyncio
import contextlib
import gc
import os
import sys
import time
from pathlib import Path

from http_frontend.app import build_app
from http_frontend.crash_requests import keep_requests
from http_frontend.front import Front
from http_frontend.server import Server, build_server, listening_socket
from protocol.control import Drain, Drained, PeerDown, PeerUp, Ready, Shutdown
from protocol.errors import ErrorInfo
from runtime.channels import Links, pump
from runtime.engine_config import EngineConfig, ProcessSpec
from runtime.process import joined, peer_of, run_async, run_process
from runtime.status_board import SlotWriter

TICK_S = 0.25
STOP_TIMEOUT_S = 3.0
SHUTTING_DOWN = ErrorInfo(
    "the server is shutting down", 503, "service_unavailable_error", code="draining", retry_after_s=5.0
)


class HttpWorker:
    """Carries out what the supervisor says, and what has to happen at intervals."""

    def __init__(self, links: Links, front: Front, server: Server, spec: ProcessSpec, slot: SlotWriter) -> None:
        self._links = links
        self._front = front
        self._server = server
        self._spec = spec
        self._slot = slot
        self._drain_deadline_s: float | None = None

    def on_control(self, message: object) -> None:
        if isinstance(message, PeerUp):
            self._links.apply_peer(message)
            self._front.on_peer_up(message)
        elif isinstance(message, PeerDown):
            self._links.apply_peer(message)
            involved = self._front.in_flight.on_peer_down(message)
            self._front.questions.on_peer_change()
            if message.evidence and involved:
                args = self._front.config.args
                keep_requests(Path(message.evidence), self._spec.index, involved, args.log_requests)
        elif isinstance(message, Drain):
            self._front.in_flight.draining = True
            self._drain_deadline_s = message.deadline_s
            self._slot.update(state="draining")
        elif isinstance(message, Shutdown):
            # Streams end with an error frame first: uvicorn would wait for them.
            self._front.in_flight.draining = True
            self._front.in_flight.fail_all(SHUTTING_DOWN)
            self._server.should_exit = True

    async def tick(self) -> None:
        """Deadlines, slow clients, the heartbeat, the end of a drain; for ever."""
        in_flight = self._front.in_flight
        reported = False
        while True:
            in_flight.sweep()
            self._slot.update(running=len(in_flight))
            if self._drain_deadline_s is not None and not reported:
                if not in_flight.idle and time.time() > self._drain_deadline_s:
                    in_flight.fail_all(SHUTTING_DOWN)
                if in_flight.idle:
                    reported = True
                    self._links.report(Drained(peer_of(self._spec)))
            await asyncio.sleep(TICK_S)


async def serve(config: EngineConfig, spec: ProcessSpec) -> int:
    with joined(spec) as (links, board):
        front = Front(config, spec.index, links.outbox, board)
        try:
            await _serve_front(front, links, spec, board.slot(spec.board_slot))
        finally:
            front.close()
    return 0


async def _serve_front(front: Front, links: Links, spec: ProcessSpec, slot: SlotWriter) -> None:
    assert spec.listen_fd is not None
    server = build_server(build_app(front), front.config.args)
    worker = HttpWorker(links, front, server, spec, slot)
    background = [
        asyncio.create_task(pump(links.inbox, front.handle)),
        asyncio.create_task(pump(links.control, worker.on_control)),
        asyncio.create_task(worker.tick()),
    ]
    serving = asyncio.create_task(server.serve(sockets=[listening_socket(spec.listen_fd)]))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        # What has been built lives as long as the process: no use in looking through it for garbage again and again.
        gc.collect()
        gc.freeze()
        slot.update(state="ready")
        links.report(Ready(peer_of(spec), os.getpid()))
        done, _ = await asyncio.wait([serving, *background], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        front.in_flight.fail_all(SHUTTING_DOWN)
        server.should_exit = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(serving, STOP_TIMEOUT_S)
        for task in background:
            task.cancel()


def main(config: EngineConfig, spec: ProcessSpec) -> int:
    return run_async(serve(config, spec))


if __name__ == "__main__":
    sys.exit(run_process(main))
