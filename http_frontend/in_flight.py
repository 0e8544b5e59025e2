"""Every request of this HTTP process that is in flight: submitted, recovered, aborted, ended here and nowhere else."""

import asyncio
import logging
import secrets
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from http_frontend.exchange import Exchange, Flight
from http_frontend.metrics import Metrics
from http_frontend.quarantine import Quarantine
from protocol.control import PeerDown, PeerUp, Role
from protocol.errors import LOST, ErrorInfo, RequestError, key_limit_error
from protocol.links import is_named
from protocol.outputs import Admitted, Refused, TextBatch
from protocol.requests import AbortRequest, GenerateRequest
from runtime.engine_config import EngineConfig

logger = logging.getLogger(__name__)

MAX_CRASHES = 3
"""A request that was being worked on at so many deaths in a row of one role is given up. From the second on it is alone:
the scheduler computes its suspects one by one, those of the other roles wait in quarantine."""

PROGRESS_TOKENS = 16
"""A request that got so much further since its last crash is not what that crash came from: its count begins anew."""

RECENT_ABORTS = 1_000
"""Aborts that are said again when a tokenizer manager dies: the last may have been lost in it."""

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
        last_plan: Callable[[int, int], frozenset[str]],
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
        self._quarantine = Quarantine()
        self._names: set[str] = set()
        self._per_key: Counter[str] = Counter()
        self._recent_aborts: deque[AbortRequest] = deque(maxlen=RECENT_ABORTS)

    def __len__(self) -> int:
        return len(self._flights)

    # Submission

    def open(self, requests: list[GenerateRequest]) -> Exchange:
        """Sends the requests; RequestError 503 if the server does not take any, 429 if their key has enough, 400 if an id
        is in use."""
        if self.draining:
            raise RequestError.from_info(_unavailable("the server is shutting down", "draining"))
        if self._missing() and self._args.recovery == "off" and not requests[0].probe:
            raise RequestError.from_info(_unavailable(f"no {self._missing()} is running", "unavailable"))
        if self._missing() and len(self._parked) + len(requests) > self._args.max_queued_requests:
            raise RequestError.from_info(_unavailable("the server is recovering and its queue is full", "queue_full"))
        key, limit = requests[0].fairness_key, self._args.max_running_per_key
        if limit is not None and key and self._per_key[key] + len(requests) > limit:
            raise RequestError.from_info(key_limit_error(limit))
        if not self._names.isdisjoint(request.request_id for request in requests):
            raise RequestError("request_id: a request with this id is running", param="request_id", code="conflict")
        # A client may use its id again. What is left of the request before must not be taken for the new one's.
        unique = secrets.token_hex(4)
        exchange = Exchange([_named(request, f"{request.request_id}~{unique}") for request in requests], self._close)
        self._exchanges.add(exchange)
        self.metrics.running_calls.set(len(self._exchanges))
        self._per_key[key] += len(requests)
        self._names.update(request.request_id for request in requests)
        for flight in exchange.flights:
            self._flights[flight.request.request_id] = flight
            self._send(flight)
        return exchange

    def _send(self, flight: Flight) -> None:
        if not self._quarantine.admits(flight):
            return
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
        touched: dict[Exchange, None] = {}
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
            if flight.losses and _has_got_on(flight, flight.tokens_at_loss):
                flight.losses = 0
                self._release(flight)
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
            touched[flight.exchange] = None
        for exchange in touched:
            exchange.wake()

    def on_admitted(self, admitted: Admitted) -> None:
        flight = self._flights.get(admitted.request_id)
        if flight is None or admitted.attempt != flight.attempt:
            return
        flight.acknowledged = admitted.attempt
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
        if refused.error.code == LOST:
            self._lost(flight)
            return True
        waited_in_vain = flight.admitted is None and refused.error.code == "queue_timeout"
        if flight.attempt > 0 and refused.error.status == 503 and not waited_in_vain:
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
        if message.peer.role == "tokenizer":
            self._repeat_aborts()
        if self._parked and not self._missing():
            parked, self._parked = list(self._parked.values()), {}
            for flight in parked:
                self._send(flight)

    def on_peer_down(self, message: PeerDown) -> list[Flight]:
        """Resubmits what the dead process may have held, and gives up what was there at each of several deaths. Returns
        what the process was at work on. The sender has dropped the peer already."""
        peer = message.peer
        computed = self._last_plan(peer.index, peer.incarnation) if peer.role == "scheduler" else frozenset()
        involved: list[Flight] = []
        if peer.role == "tokenizer":
            self._repeat_aborts()
        for flight in self._held(peer.role, peer.index):
            if flight.request.request_id in computed:
                involved.append(flight)
                _count_crash(flight)
            elif peer.role != "scheduler":
                involved.append(flight)
                _count_loss(flight, peer.role)
            if self._args.recovery == "off":
                self._forget(flight)
                flight.exchange.fail(_crashed(f"the {peer.role} process died"))
            elif max(flight.crashes, flight.losses) >= MAX_CRASHES:
                self._forget(flight)
                flight.exchange.fail(_crashed(f"the {peer.role} process died each time that it had this request"))
            else:
                self._resubmit(flight)
        return involved

    def _held(self, role: Role, index: int) -> list[Flight]:
        """What the dead process may have had: not what waits here."""
        return [
            flight
            for request_id, flight in self._flights.items()
            if request_id not in self._parked and flight not in self._quarantine and self._held_by(flight, role, index)
        ]

    def _held_by(self, flight: Flight, role: Role, index: int) -> bool:
        waiting = flight.acknowledged < flight.attempt
        if role == "tokenizer":
            return waiting and flight.tokenizer == index
        if role == "scheduler":
            return waiting or flight.admitted is None or flight.admitted.replica == index
        # Which detokenizer a request has is the tokenizer manager's choice: all of them start again.
        return role == "detokenizer"

    def _lost(self, flight: Flight) -> None:
        """It was on its way to a process that had died, which this worker knew already or did not know yet."""
        if self._args.recovery == "off":
            self._forget(flight)
            flight.exchange.fail(_crashed("the process that should have taken the request died"))
        else:
            self._resubmit(flight)

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
        # One by one, so that those which wait here are ended when they are sent.
        for request_id in self._flights:
            if client_id is None or is_named(request_id, client_id):
                abort = AbortRequest(request_id)
                self._recent_aborts.append(abort)
                self._broadcast(abort)
        if client_id is None:
            self._broadcast(AbortRequest("", abort_all=True))
        elif self._args.http_workers > 1:
            self._broadcast(AbortRequest("", client_id=client_id))

    def sweep(self) -> None:
        """Called several times a second: deadlines, clients that stopped reading, silent streams."""
        now, wall = time.monotonic(), time.time()
        for exchange in list(self._exchanges):
            deadline_s = exchange.flights[0].request.deadline_s
            if deadline_s is not None and wall > deadline_s and exchange.failure is None:
                exchange.fail(
                    ErrorInfo("the request took longer than its time limit", 408, "timeout_error", code="timeout")
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
            self._recent_aborts.append(abort)
            if not self._sender.send("tokenizer", flight.tokenizer, abort):
                self._broadcast(abort)

    def _forget(self, flight: Flight) -> None:
        request = flight.request
        if self._flights.pop(request.request_id, None) is not None:
            self._names.discard(request.request_id.rpartition("~")[0])
            self._per_key[request.fairness_key] -= 1
            if not self._per_key[request.fairness_key]:
                del self._per_key[request.fairness_key]
        self._parked.pop(flight.request.request_id, None)
        self._release(flight)

    def _release(self, flight: Flight) -> None:
        """Lets the next suspect go, if this one kept it waiting."""
        following = self._quarantine.leave(flight)
        if following is not None:
            self._send(following)

    def _repeat_aborts(self) -> None:
        """A tokenizer manager that died may have had some in its queue; one that is new has heard of none."""
        for abort in self._recent_aborts:
            self._broadcast(abort)

    def _broadcast(self, message: msgspec.Struct) -> None:
        for index in self._sender.peers("tokenizer"):
            self._sender.send("tokenizer", index, message)


def _count_crash(flight: Flight) -> None:
    if _has_got_on(flight, flight.tokens_at_crash):
        flight.crashes = 0
    flight.crashes += 1
    flight.tokens_at_crash = flight.delivered_tokens


def _count_loss(flight: Flight, role: Role) -> None:
    if flight.lost_to != role or _has_got_on(flight, flight.tokens_at_loss):
        flight.losses = 0
    flight.losses += 1
    flight.lost_to = role
    flight.tokens_at_loss = flight.delivered_tokens


def _has_got_on(flight: Flight, since_tokens: int) -> bool:
    return flight.delivered_tokens - since_tokens >= PROGRESS_TOKENS


def _named(request: GenerateRequest, request_id: str) -> GenerateRequest:
    return msgspec.structs.replace(request, request_id=request_id)


def _unavailable(message: str, code: str) -> ErrorInfo:
    return ErrorInfo(message, 503, "service_unavailable_error", code=code, retry_after_s=1.0)


def _crashed(message: str) -> ErrorInfo:
    return ErrorInfo(message, 500, "server_error", code="engine_crashed")
