"""One tagged union per inbox, and the MessagePack codecs of each."""

from typing import Any

import msgspec

from protocol import control, outputs, plan, requests

TokenizerInbox = (
    requests.GenerateRequest
    | requests.RenderRequest
    | requests.TokenizeRequest
    | requests.DetokenizeRequest
    | requests.AbortRequest
    | control.ControlRequest
    | requests.PeekCache
)
SchedulerInbox = (
    requests.EngineRequest | requests.AbortRequest | requests.PeekCache | control.ControlRequest | outputs.StopFound
)
DetokenizerInbox = outputs.Admitted | outputs.StepOutput | outputs.Refused | control.ControlReply
HttpInbox = (
    outputs.Admitted
    | outputs.TextBatch
    | outputs.Refused
    | outputs.Rendered
    | outputs.Tokenized
    | outputs.Detokenized
    | control.ControlReply
)
RankInbox = plan.BatchPlan | plan.GrammarMasks | control.Shutdown
ProcessControl = control.PeerUp | control.PeerDown | control.Drain | control.Shutdown
SupervisorInbox = control.Ready | control.Progress | control.Failed | control.Drained

INBOXES: dict[control.Role, Any] = {
    "http": HttpInbox,
    "tokenizer": TokenizerInbox,
    "scheduler": SchedulerInbox,
    "detokenizer": DetokenizerInbox,
    "rank": RankInbox,
}

_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """The message as MessagePack: a map with a "type" tag, or an array where the struct is array-like."""
    return _encoder.encode(message)


def decoder(union: Any) -> msgspec.msgpack.Decoder[Any]:
    """A decoder of one inbox's union; it raises msgspec.ValidationError (a DecodeError) on anything else."""
    return msgspec.msgpack.Decoder(union)


def request_owner(request_id: str) -> int:
    """The index of the HTTP worker that owns the request; ValueError if the id is not one of ours."""
    return int(request_id.partition("-")[0])


def is_named(request_id: str, client_id: str) -> bool:
    """Whether a client called the request so: it alone, or the batch of which it is one."""
    name = request_id.partition("-")[2].rpartition("~")[0]
    return client_id in (name, name.rpartition("#")[0])
