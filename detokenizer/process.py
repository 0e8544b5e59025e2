"""The detokenizer process: drain, work, send. One message per step and link, none where nothing is to say."""

import os
import sys
import time

import msgspec

from detokenizer.detokenizer import Detokenizer
from detokenizer.pieces import Pieces
from protocol.control import ControlReply, Drain, Drained, PeerDown, PeerUp, Ready, Shutdown
from protocol.links import request_owner
from protocol.outputs import Admitted, Refused, StepOutput, TextBatch
from runtime.channels import Links
from runtime.engine_config import EngineConfig, ProcessSpec
from runtime.process import joined, peer_of, run_process
from runtime.status_board import SlotWriter

_IDLE_BEAT_S = 1.0
_MESSAGES_PER_TURN = 64
_DRAIN_CHECK_S = 0.05


class DetokenizerLoop:
    """Everything the process does between its start and its end."""

    def __init__(self, links: Links, detokenizer: Detokenizer, spec: ProcessSpec, slot: SlotWriter) -> None:
        self._links = links
        self._detokenizer = detokenizer
        self._peer = peer_of(spec)
        self._slot = slot
        self._steps = 0
        self._drain_deadline_s: float | None = None
        self._running = True

    def run(self) -> None:
        self._slot.update(state="ready")
        self._links.report(Ready(self._peer, os.getpid()))
        while self._running:
            self._links.wait(_IDLE_BEAT_S if self._drain_deadline_s is None else _DRAIN_CHECK_S)
            self.turn()

    def turn(self) -> None:
        """Takes what is there, sends what came of it; never waits."""
        for control in self._links.control.drain():
            self._control(control)
        if self._work():
            self._steps += 1
        self._slot.update(steps=self._steps, running=len(self._detokenizer))
        self._report_drained()

    def _control(self, message: PeerUp | PeerDown | Drain | Shutdown) -> None:
        if isinstance(message, Shutdown):
            self._running = False
        elif isinstance(message, Drain):
            self._drain_deadline_s = message.deadline_s
            self._slot.update(state="draining")
        else:
            self._links.apply_peer(message)
            if isinstance(message, PeerDown):
                self._peer_down(message)

    def _peer_down(self, message: PeerDown) -> None:
        if message.peer.role == "http":
            self._detokenizer.drop_worker(message.peer.index)
        elif message.peer.role == "scheduler":
            # What the dead scheduler had sent is good; only then is its state of no more use.
            while self._work():
                pass
            self._detokenizer.drop_replica(message.peer.index)

    def _work(self) -> bool:
        """Handles the messages that are there, up to a turn's worth; True if there were any."""
        outbox, detokenizer = self._links.outbox, self._detokenizer
        worked = False
        for message in self._links.inbox.drain(_MESSAGES_PER_TURN):
            worked = True
            match message:
                case StepOutput():
                    for output in message.outputs:
                        detokenizer.add(output)
                case Admitted():
                    detokenizer.open(message)
                    outbox.send_or_keep("http", request_owner(message.request_id), _for_front_end(message))
                case Refused():
                    detokenizer.refused(message.request_id, message.attempt)
                    outbox.send_or_keep("http", request_owner(message.request_id), message)
                case ControlReply():
                    outbox.send_or_keep("http", message.worker, message)
        self._send()
        return worked

    def _send(self) -> None:
        texts, stops = self._detokenizer.take()
        for worker, outputs in texts.items():
            self._links.outbox.send_or_keep("http", worker, TextBatch(outputs))
        for replica, stop in stops:
            self._links.outbox.send_or_keep("scheduler", replica, stop)

    def _report_drained(self) -> None:
        deadline_s = self._drain_deadline_s
        if deadline_s is not None and (not len(self._detokenizer) or time.time() > deadline_s):
            self._drain_deadline_s = None
            self._links.report(Drained(self._peer))


def _for_front_end(message: Admitted) -> Admitted:
    """Without what only the detokenizer needs, which may be long."""
    if not message.resume and not message.prompt_tail:
        return message
    return msgspec.structs.replace(message, resume=(), prompt_tail=b"")


def main(config: EngineConfig, spec: ProcessSpec) -> int:
    pieces = Pieces.load(config.model.tokenizer_file)
    with joined(spec) as (links, board):
        DetokenizerLoop(links, Detokenizer(pieces), spec, board.slot(spec.board_slot)).run()
    return 0


if __name__ == "__main__":
    sys.exit(run_process(main))
