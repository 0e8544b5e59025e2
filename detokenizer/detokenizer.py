"""All requests of one detokenizer: from `Admitted` to the final output of their last choice, with nothing left behind."""

import regex

from detokenizer.choice import Choice, TextPlan
from detokenizer.pieces import Pieces
from detokenizer.stop_matcher import StopStrings
from protocol.errors import ErrorInfo
from protocol.ids import count_ids, unpack_ids
from protocol.links import request_owner
from protocol.outputs import Admitted, Finish, SequenceOutput, StopFound, TextOutput


class RequestText:
    """The unfinished choices of one attempt of one request."""

    def __init__(self, admitted: Admitted, pieces: Pieces) -> None:
        options = admitted.detokenize
        self.attempt = admitted.attempt
        self.worker = request_owner(admitted.request_id)
        self.replica = admitted.replica
        plan = TextPlan(
            pieces,
            admitted,
            StopStrings(options.stop) if any(options.stop) else None,
            pieces.hidden_ids(options.skip_special_tokens, options.visible_special_tokens),
            tuple(unpack_ids(admitted.prompt_tail)),
        )
        progress = {choice.index: choice for choice in admitted.resume}
        self.choices: dict[int, Choice] = {}
        for index in range(admitted.n):
            known = progress.get(index)
            if known is None:
                self.choices[index] = Choice(plan, index)
            elif not known.finished:
                self.choices[index] = Choice(plan, index, known.ids)


class Detokenizer:
    """Turns what the scheduler says into what the HTTP workers get; the outcome collects until `take`."""

    def __init__(self, pieces: Pieces) -> None:
        self._texts: dict[int, list[TextOutput]] = {}
        self._stops: list[tuple[int, StopFound]] = []
        self._pieces = pieces
        self._requests: dict[str, RequestText] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def open(self, admitted: Admitted) -> None:
        """Opens the state of an attempt. An older attempt's state goes without a word; an older attempt is ignored."""
        known = self._requests.get(admitted.request_id)
        if known is not None and known.attempt > admitted.attempt:
            return
        try:
            request = RequestText(admitted, self._pieces)
        except regex.error as error:
            self._requests.pop(admitted.request_id, None)
            self._fail(admitted, f"the stop regex is not valid: {error}")
            return
        if request.choices:
            self._requests[admitted.request_id] = request
        else:
            self._requests.pop(admitted.request_id, None)

    def add(self, output: SequenceOutput) -> None:
        """Takes in one choice's part of a step; what belongs to no open choice is dropped (it has ended, or is older)."""
        request = self._requests.get(output.request_id)
        if request is None or request.attempt != output.attempt:
            return
        choice = request.choices.get(output.index)
        if choice is None:
            return
        text = choice.add(output)
        if text is None:
            return
        self._texts.setdefault(request.worker, []).append(text)
        if text.finish is not None:
            if choice.stop_found is not None:
                self._stops.append((request.replica, choice.stop_found))
            del request.choices[output.index]
            if not request.choices:
                del self._requests[output.request_id]

    def take(self) -> tuple[dict[int, list[TextOutput]], list[tuple[int, StopFound]]]:
        """What has come together since the last call: outputs by worker, stops with their replica."""
        texts, stops = self._texts, self._stops
        self._texts, self._stops = {}, []
        return texts, stops

    def drop_worker(self, worker: int) -> None:
        """The HTTP worker is gone, and its clients with it."""
        self._drop([id for id, request in self._requests.items() if request.worker == worker])

    def drop_replica(self, replica: int) -> None:
        """The scheduler is gone; the front end submits its requests again as new attempts."""
        self._drop([id for id, request in self._requests.items() if request.replica == replica])

    def refused(self, request_id: str, attempt: int) -> None:
        """The attempt will not run; an older one, which it superseded, ended without a word."""
        request = self._requests.get(request_id)
        if request is not None and request.attempt <= attempt:
            self._drop([request_id])

    def _drop(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            del self._requests[request_id]

    def _fail(self, admitted: Admitted, message: str) -> None:
        error = ErrorInfo(message, param="stop_regex", code="invalid_stop_regex")
        finished = {choice.index for choice in admitted.resume if choice.finished}
        counts = {choice.index: count_ids(choice.ids) for choice in admitted.resume}
        for index in range(admitted.n):
            if index in finished:
                continue
            id, attempt, count = admitted.request_id, admitted.attempt, counts.get(index, 0)
            final = TextOutput(id, attempt, index, "", b"", count, Finish("error", error=error))
            self._texts.setdefault(request_owner(id), []).append(final)
            self._stops.append((admitted.replica, StopFound(id, attempt, index, count, error=True)))
