"""ZeroMQ, and nothing else imports it: inboxes (PULL, the reader binds) and outboxes (one PUSH per destination).

A sender never blocks: queues are unbounded in ZeroMQ and bounded by admission (see docs/architecture.md, back-pressure).
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import zmq

from protocol.control import Peer, PeerDown, PeerUp, Role
from protocol.links import INBOXES, ProcessControl, SupervisorInbox, decoder, encode
from runtime.engine_config import ProcessSpec

MAX_MESSAGE_BYTES = 256 << 20
KEPT_FRAMES = 4096
"""Frames that wait for one peer that is not up yet."""


class Inbox:
    """A bound PULL socket that yields decoded messages. A frame that does not decode is reported and dropped."""

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        union: Any,
        on_garbage: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.socket = context.socket(zmq.PULL)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(endpoint)
        self._decoder = decoder(union)
        self._on_garbage = on_garbage

    @property
    def endpoint(self) -> str:
        """Where it listens: as it was told, with the port filled in where that was left open."""
        bound: bytes = self.socket.getsockopt(zmq.LAST_ENDPOINT)
        return bound.rstrip(b"\0").decode()

    def drain(self, limit: int = 10_000) -> Iterator[Any]:
        """Messages that are there now, at most `limit`; never waits."""
        for _ in range(limit):
            try:
                frame = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            message = self.decode(frame)
            if message is not None:
                yield message

    def decode(self, frame: bytes) -> Any | None:
        """The message, or None for a frame that is not one of ours."""
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, RecursionError) as error:
            self._on_garbage(str(error))
            return None

    def close(self) -> None:
        self.socket.close(0)


class Outbox:
    """PUSH sockets to the live incarnation of each peer. A message for a peer that is down is dropped and counted."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._context = context
        self._sockets: dict[tuple[Role, int], tuple[Peer, zmq.Socket[Any]]] = {}
        self._kept: dict[tuple[Role, int], deque[bytes]] = {}
        self.dropped = 0

    def peer_up(self, peer: Peer) -> None:
        """Connects to the peer; an older incarnation's socket goes, with what was queued in it."""
        known = self._sockets.get((peer.role, peer.index))
        if known is not None:
            if known[0].incarnation >= peer.incarnation:
                return
            known[1].close(0)
        socket = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(peer.endpoint)
        self._sockets[peer.role, peer.index] = (peer, socket)
        for frame in self._kept.pop((peer.role, peer.index), ()):
            socket.send(frame)

    def peer_down(self, peer: Peer) -> None:
        """Drops the socket if it belongs to this incarnation (or an older one)."""
        known = self._sockets.get((peer.role, peer.index))
        if known is not None and known[0].incarnation <= peer.incarnation:
            known[1].close(0)
            del self._sockets[peer.role, peer.index]

    def peers(self, role: Role) -> list[int]:
        """Indices of the live peers of a role, in order."""
        return sorted(index for known, index in self._sockets if known == role)

    def send(self, role: Role, index: int, message: msgspec.Struct) -> bool:
        """Queues the message; False if the peer is not up."""
        return self.send_frame(role, index, encode(message))

    def send_or_keep(self, role: Role, index: int, message: msgspec.Struct) -> None:
        """Sends the message, now or when the peer comes up: news of a peer and what concerns it travel on different
        links, in no common order. What an earlier incarnation should have had does no harm: attempts tell."""
        if (role, index) in self._sockets:
            self.send(role, index, message)
            return
        kept = self._kept.setdefault((role, index), deque(maxlen=KEPT_FRAMES))
        self.dropped += len(kept) == KEPT_FRAMES
        kept.append(encode(message))

    def send_frame(self, role: Role, index: int, frame: bytes) -> bool:
        """As `send`, for a frame that is encoded already (one encoding, several readers)."""
        known = self._sockets.get((role, index))
        if known is None:
            self.dropped += 1
            return False
        try:
            known[1].send(frame, zmq.NOBLOCK)
        except zmq.Again:
            self.dropped += 1
            return False
        return True

    def close(self) -> None:
        for _, socket in self._sockets.values():
            socket.close(1000)
        self._sockets.clear()


class Links:
    """One process's sockets: its inbox, the supervisor's link to it, its link to the supervisor, and its peers."""

    def __init__(self, spec: ProcessSpec, on_garbage: Callable[[str], None] = lambda reason: None) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.inbox = Inbox(self.context, spec.endpoint, INBOXES[spec.role], on_garbage)
        self.control = Inbox(self.context, spec.control_endpoint, ProcessControl, on_garbage)
        self.outbox = Outbox(self.context)
        self._supervisor = self.context.socket(zmq.PUSH)
        self._supervisor.setsockopt(zmq.LINGER, 1000)
        self._supervisor.connect(spec.supervisor_endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self.inbox.socket, zmq.POLLIN)
        self._poller.register(self.control.socket, zmq.POLLIN)

    def report(self, message: msgspec.Struct) -> None:
        """Sends a SupervisorInbox message."""
        self._supervisor.send(encode(message))

    def wait(self, timeout_s: float | None) -> None:
        """Blocks until either inbox has something, or the time is over (None: for ever)."""
        self._poller.poll(None if timeout_s is None else _milliseconds(timeout_s))

    def apply_peer(self, message: PeerUp | PeerDown) -> None:
        if isinstance(message, PeerUp):
            self.outbox.peer_up(message.peer)
        else:
            self.outbox.peer_down(message.peer)

    def close(self) -> None:
        self.inbox.close()
        self.control.close()
        self.outbox.close()
        self._supervisor.close(1000)
        self.context.term()


class SupervisorLinks:
    """The supervisor's sockets: one inbox for what all processes report, and its own link to each of them.

    `control` knows each process by a Peer whose endpoint is the process's control endpoint. Messages may be sent before
    the process has bound it: ZeroMQ keeps them.
    """

    def __init__(self, endpoint: str, on_garbage: Callable[[str], None] = lambda reason: None) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.inbox = Inbox(self.context, endpoint, SupervisorInbox, on_garbage)
        self.control = Outbox(self.context)

    def wait(self, timeout_s: float, wake_fd: int) -> None:
        """Blocks until a process reports, `wake_fd` is readable, or the time is over."""
        poller = zmq.Poller()
        poller.register(self.inbox.socket, zmq.POLLIN)
        poller.register(wake_fd, zmq.POLLIN)
        poller.poll(_milliseconds(timeout_s))

    def close(self) -> None:
        """Drops what is still queued: nobody is left to read it."""
        self.inbox.close()
        self.context.destroy(linger=0)


def _milliseconds(timeout_s: float) -> int:
    """Rounded up: rounding down would turn a wait of half a millisecond into spinning."""
    return max(0, math.ceil(timeout_s * 1000))


def report_once(spec: ProcessSpec, message: msgspec.Struct) -> None:
    """Sends one SupervisorInbox message from a process that has no `Links` (any more), and waits up to a second for it
    to leave."""
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.connect(spec.supervisor_endpoint)
    socket.send(encode(message))
    socket.close(1000)
    context.term()


async def pump(inbox: Inbox, handle: Callable[[Any], None]) -> None:
    """Feeds an inbox's messages to `handle` from an event loop, for ever: drains what is there, then waits on the
    socket's file descriptor. `handle` must not block. Yields to the loop between drains."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    fd = inbox.socket.getsockopt(zmq.FD)
    loop.add_reader(fd, readable.set)
    try:
        while True:
            # The FD is edge-triggered: after it fires, events must be read until none is left.
            began = time.monotonic()
            busy = False
            for message in inbox.drain(limit=256):
                busy = True
                handle(message)
                if time.monotonic() - began > 0.005:
                    break
            if busy or inbox.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                await asyncio.sleep(0)
                continue
            await readable.wait()
            readable.clear()
    finally:
        loop.remove_reader(fd)
