"""Control: questions that travel the ring with a correlation id, and the supervisor's word to each process."""

from typing import Any, Literal

import msgspec

Role = Literal["http", "tokenizer", "scheduler", "detokenizer", "rank"]


class Peer(msgspec.Struct, frozen=True):
    """One incarnation of one process. Its inbox is `endpoint`; a restart has a new incarnation and a new endpoint."""

    role: Role
    index: int
    incarnation: int
    endpoint: str


class PeerUp(msgspec.Struct, frozen=True, tag="peer_up"):
    """The process is ready. `info` is what it announced (a scheduler: kv_tokens, max_running_requests, ...)."""

    peer: Peer
    info: dict[str, Any] = {}


class PeerDown(msgspec.Struct, frozen=True, tag="peer_down"):
    """The process is gone: drop the socket and whatever was queued in it.

    `at_s` (`time.time()`) is when the supervisor noticed: what was sent to the process since has been lost without
    anybody but the sender knowing. `evidence` is the folder where this death's evidence is kept, "" if none is.
    """

    peer: Peer
    reason: str = ""
    at_s: float = 0.0
    evidence: str = ""


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Refuse new work, finish what runs until `deadline_s` (`time.time()`), then report `Drained`."""

    deadline_s: float


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End now; exit with status 0."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Process -> supervisor: the inbox is bound and work can come."""

    peer: Peer
    pid: int
    info: dict[str, Any] = {}


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Process -> supervisor: start-up is moving (weights loaded so far, for the progress bar and the start time-out)."""

    peer: Peer
    what: str
    done: int
    total: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Process -> supervisor: one clear sentence, before it exits non-zero."""

    peer: Peer
    message: str


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    peer: Peer


class ControlRequest(msgspec.Struct, frozen=True, omit_defaults=True, tag="control"):
    """A question from HTTP worker `worker`, passed along the ring; each process that it concerns answers once.

    `what`: flush_cache (arguments: mode "idle" | "unlocked" | "deferred", timeout_s), state (what /server_info shows;
    arguments: check), loads, pause, resume, set_log_level.
    """

    correlation_id: str
    worker: int
    what: Literal["flush_cache", "state", "loads", "pause", "resume", "set_log_level"]
    arguments: dict[str, Any] = {}
    replica: int | None = None


class ControlReply(msgspec.Struct, frozen=True, omit_defaults=True, tag="control_reply"):
    correlation_id: str
    worker: int
    role: Role
    index: int
    ok: bool = True
    message: str = ""
    payload: dict[str, Any] = {}
