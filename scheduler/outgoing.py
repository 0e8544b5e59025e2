"""What goes to the detokenizers: one StepOutput per detokenizer and step, and what must not overtake it."""

from collections.abc import Callable

import msgspec

from protocol.outputs import SequenceOutput, StepOutput

Send = Callable[[int, msgspec.Struct], object]


class Outgoing:
    """Collects outputs until `flush`; other messages flush what was before them, so that order is kept."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._outputs: dict[int, list[SequenceOutput]] = {}
        self.step = 0

    def add(self, detokenizer: int, output: SequenceOutput) -> None:
        outputs = self._outputs.get(detokenizer)
        if outputs is None:
            outputs = self._outputs[detokenizer] = []
        outputs.append(output)

    def send(self, detokenizer: int, message: msgspec.Struct) -> None:
        """Admitted, Refused, ControlReply: sent at once, after the outputs that came before."""
        outputs = self._outputs.pop(detokenizer, None)
        if outputs:
            self._send(detokenizer, StepOutput(self.step, outputs))
        self._send(detokenizer, message)

    def flush(self) -> None:
        for detokenizer, outputs in self._outputs.items():
            self._send(detokenizer, StepOutput(self.step, outputs))
        self._outputs.clear()
