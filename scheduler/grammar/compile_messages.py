"""What the scheduler and its compile worker say to each other, over the worker's standard input and output."""

import struct
from typing import Any, Protocol

import msgspec

from protocol.sampling import GrammarSpec

_LENGTH = struct.Struct("<Q")


class Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Writer(Protocol):
    def write(self, data: bytes, /) -> int: ...

    def flush(self) -> None: ...


class WorkerStart(msgspec.Struct, frozen=True, tag="start"):
    """The first message to a worker."""

    tokenizer_file: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    timeout_s: float
    parallel: int


class CompileJob(msgspec.Struct, frozen=True, tag="job"):
    id: int
    spec: GrammarSpec


class CancelJob(msgspec.Struct, frozen=True, tag="cancel"):
    id: int


class CompileOutcome(msgspec.Struct, frozen=True, tag="outcome"):
    """`compiled` is xgrammar's own serialisation. `lasting` errors are the grammar's fault, whenever it is tried."""

    id: int
    compiled: bytes = b""
    error: str = ""
    code: str = ""
    lasting: bool = True


class WorkerReady(msgspec.Struct, frozen=True, tag="ready"):
    """The worker has loaded everything: from now on a grammar takes as long as it takes."""


ToWorker = WorkerStart | CompileJob | CancelJob
FromWorker = WorkerReady | CompileOutcome


def write_frame(stream: Writer, message: msgspec.Struct) -> None:
    data = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def read_frame(stream: Reader, union: Any) -> Any | None:
    """The next message, None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return msgspec.msgpack.decode(data, type=union) if len(data) == length else None
