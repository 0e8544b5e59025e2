"""Every request of this HTTP process that is in flight: submitted, recovered, aborted, ended here and nowhere else."""

import asyncio
import logging
import time
import zlib
from collections.abc import Callable
from typing import Protocol

import msgspec

from http_frontend.exchange import Exchange, Flight
from http_frontend.metrics import Metrics
from protocol.control import PeerDown, PeerUp, Role
from protocol.errors import ErrorInfo, RequestError
from protocol.outputs import Admitted, Refused, TextBatch
from protocol.requests import AbortRequest, GenerateRequest
from runtime.engine_config import EngineConfig

logger = logging.getLogger(__name__)

MAX_CRASHES = 3
RETRY_S = 0.25
RING: tuple[Role, ...] = ("tokenizer", "scheduler", "detokenizer")


class Sender(Protocol):
    """What is needed of `runtime.channels.Outbox`."""

    def peers(self, role: Role) -> list[int]: ...

    def send(self, role: Role, index: int, message: msgspec.Struct) -> bool: ...


class InFlight:
    """The engine as the protocols see it: `open` requests, read their exchange, close it.

    A request is parked while a part of the ring is missing (recovery), and sent when the part is back. With
    `--recovery off` it fails instead. `last_plan` says whose rows a scheduler was computing when it died.
    """

    def __init__(
        self,
        config: EngineConfig,
        worker: int,
        sender: Sender,
        metrics: Metrics,
        last_plan: Callable[[int], frozenset[str]],
    ) -> None:
        self.worker = worker
        self.draining = False
        self._args = config.args
        self._sender = sender
        self._last_plan = last_plan
        self.metrics = metrics
        self._flights: dict[str, Flight] = {}
        self._exchanges: set[Exchange] = set()
        self._parked: dict[str, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    # Submission

    def open(self, requests: list[GenerateRequest]) -> Exchange:
        """Sends the requests; RequestError 503 if the server does not take any, 400 if an id is in use."""
        if self.draining:
            raise RequestError.from_info(_unavailable("the server is shutting down", "draining"))
        if self._missing() and self._args.recovery == "off" and not requests[0].probe:
            raise RequestError.from_info(_unavailable(f"no {self._missing()} is running", "unavailable"))
        if len(self._parked) + len(requests) > self._args.max_queued_requests:
            raise RequestError.from_info(_unavailable("the server is recovering and its queue is full", "queue_full"))
        for request in requests:
            if request.request_id in self._flights:
                raise RequestError("request_id: a request with this id is running", param="request_id", code="conflict")
        exchange = Exchange(requests, self._close)
        self._exchanges.add(exchange)
        self.metrics.running_calls.set(len(self._exchanges))
        for flight in exchange.flights:
            self._flights[flight.request.request_id] = flight
            self._send(flight)
        return exchange

    def _send(self, flight: Flight) -> None:
        if self._missing():
            self._parked[flight.request.request_id] = flight
            return
        tokenizers = self._sender.peers("tokenizer")
        flight.tokenizer = tokenizers[zlib.crc32(flight.request.request_id.encode()) % len(tokenizers)]
        self._sender.send("tokenizer", flight.tokenizer, flight.submission())

    def _missing(self) -> Role | None:
        return next((role for role in RING if not self._sender.peers(role)), None)

    # What comes back

    def on_text(self, batch: TextBatch) -> None:
        now = time.monotonic()
        for output in batch.outputs:
            flight = self._flights.get(output.request_id)
            if flight is None or output.attempt != flight.attempt:
                continue
            progress = flight.progress[output.index]
            if progress.finished:
                continue
            progress.ids += output.ids
            if self._args.log_requests:
                progress.texts.append(output.text)
            if output.prompt_logprobs is not None:
                flight.scored = True
            self.metrics.on_output(flight.began_s, flight.last_s, now, output)
            flight.last_s = now
            if output.finish is not None:
                progress.finished = True
                flight.unfinished -= 1
                if self._args.log_requests:
                    # As JSON: a client's text can't forge lines of the log.
                    text = msgspec.json.encode("".join(progress.texts)).decode()
                    logger.info("answer %s[%d] (%s): %s", output.request_id, output.index, output.finish.reason, text)
                if not flight.unfinished:
                    flight.exchange.unfinished -= 1
                    self._forget(flight)
                if output.finish.reason == "error":
                    error = output.finish.error or ErrorInfo("generation failed", 500, "server_error", code="failed")
                    flight.exchange.fail(error)
                    continue
            flight.exchange.deliver(flight.position, output)

    def on_admitted(self, admitted: Admitted) -> None:
        flight = self._flights.get(admitted.request_id)
        if flight is None or admitted.attempt != flight.attempt:
            return
        if flight.admitted is None:
            self.metrics.prompt_tokens.add(admitted.prompt_tokens)
            flight.admitted = admitted
            flight.exchange.wake()
        else:
            # A later attempt: the client has been told about the first; only the place has changed.
            flight.admitted = msgspec.structs.replace(flight.admitted, replica=admitted.replica)

    def on_refused(self, refused: Refused) -> bool:
        """Takes the refusal if it concerns a request that is in flight."""
        flight = self._flights.get(refused.request_id)
        if flight is None or refused.attempt != flight.attempt:
            return False
        if flight.attempt > 0 and refused.error.status == 503:
            # It had been accepted once: it waits for its place instead of being refused.
            loop = asyncio.get_running_loop()
            loop.call_later(RETRY_S, self._resubmit_attempt, flight, flight.attempt)
            return True
        self._forget(flight)
        flight.exchange.fail(refused.error)
        return True

    # Peers

    def on_peer_up(self, message: PeerUp) -> None:
        """The sender knows the peer already; what was parked may go now."""
        if self._parked and not self._missing():
            parked, self._parked = list(self._parked.values()), {}
            for flight in parked:
                self._send(flight)

    def on_peer_down(self, message: PeerDown) -> None:
        """Resubmits what the dead process may have held, and gives up what was computed at each of several crashes. The
        sender has dropped the peer already."""
        peer = message.peer
        computed = self._last_plan(peer.index) if peer.role == "scheduler" else frozenset()
        for flight in list(self._flights.values()):
            if flight.request.request_id in self._parked or not self._held_by(flight, peer.role, peer.index):
                continue
            if self._args.recovery == "off":
                self._forget(flight)
                flight.exchange.fail(_crashed(f"the {peer.role} process died"))
            else:
                if flight.request.request_id in computed:
                    # From the second crash on it is a suspect, whose rows are computed alone: a third one convicts it.
                    flight.crashes += 1
                if flight.crashes >= MAX_CRASHES:
                    self._forget(flight)
                    flight.exchange.fail(_crashed("the request was running at each of several crashes"))
                else:
                    self._resubmit(flight)

    def _held_by(self, flight: Flight, role: Role, index: int) -> bool:
        if role == "tokenizer":
            return flight.admitted is None and flight.tokenizer == index
        if role == "scheduler":
            return flight.admitted is None or flight.admitted.replica == index
        # Which detokenizer a request has is the tokenizer manager's choice: all of them start again.
        return role == "detokenizer"

    def _resubmit_attempt(self, flight: Flight, attempt: int) -> None:
        if self._flights.get(flight.request.request_id) is flight and flight.attempt == attempt:
            self._resubmit(flight)

    def _resubmit(self, flight: Flight) -> None:
        flight.attempt += 1
        self.metrics.resubmitted.add(1)
        self._send(flight)

    # Ends

    def abort(self, client_id: str | None) -> None:
        """`/abort_request`: the id as the client knows it, in whichever HTTP worker it lives; None aborts everything."""
        if client_id is None:
            self._broadcast(AbortRequest("", abort_all=True))
            return
        for request_id in list(self._flights):
            _, _, rest = request_id.partition("-")
            if rest == client_id or rest.rpartition("#")[0] == client_id:
                self._broadcast(AbortRequest(request_id))
        for worker in range(self._args.http_workers):
            if worker != self.worker:
                self._broadcast(AbortRequest(f"{worker}-{client_id}"))

    def sweep(self) -> None:
        """Called several times a second: deadlines, clients that stopped reading, silent streams."""
        now, wall = time.monotonic(), time.time()
        for exchange in list(self._exchanges):
            deadline_s = exchange.flights[0].request.deadline_s
            if deadline_s is not None and wall > deadline_s and exchange.failure is None:
                exchange.fail(
                    ErrorInfo("the request took longer than its time limit", 504, "timeout_error", code="timeout")
                )
                self._abort_rest(exchange)
            writing = exchange.writing_since
            if writing is not None and now - writing > self._args.slow_client_timeout_s and exchange.cut is not None:
                logger.info("a client that stopped reading is cut")
                exchange.cut()
            if self._args.sse_keepalive_s and now - exchange.quiet_since > self._args.sse_keepalive_s:
                exchange.quiet_since = now
                exchange.wake()

    def fail_all(self, error: ErrorInfo) -> None:
        """Ends everything that runs, at the end of a drain."""
        for exchange in list(self._exchanges):
            exchange.fail(error)
            self._abort_rest(exchange)

    @property
    def idle(self) -> bool:
        return not self._exchanges

    def _close(self, exchange: Exchange) -> None:
        self._abort_rest(exchange)
        self._exchanges.discard(exchange)
        self.metrics.running_calls.set(len(self._exchanges))

    def _abort_rest(self, exchange: Exchange) -> None:
        for flight in exchange.flights:
            if self._flights.get(flight.request.request_id) is not flight:
                continue
            self._forget(flight)
            if flight.tokenizer is None:
                continue
            abort = AbortRequest(flight.request.request_id, flight.attempt)
            if not self._sender.send("tokenizer", flight.tokenizer, abort):
                self._broadcast(abort)

    def _forget(self, flight: Flight) -> None:
        self._flights.pop(flight.request.request_id, None)
        self._parked.pop(flight.request.request_id, None)

    def _broadcast(self, message: msgspec.Struct) -> None:
        for index in self._sender.peers("tokenizer"):
            self._sender.send("tokenizer", index, message)


def _unavailable(message: str, code: str) -> ErrorInfo:
    return ErrorInfo(message, 503, "service_unavailable_error", code=code, retry_after_s=1.0)


def _crashed(message: str) -> ErrorInfo:
    return ErrorInfo(message, 500, "server_error", code="engine_crashed")
