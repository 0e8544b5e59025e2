"""What the results of a step mean: ids are appended, ends are found, outputs are made."""

from protocol.errors import ErrorInfo
from protocol.ids import pack_ids, unpack_ids
from protocol.outputs import Finish, IdLogprobs, SequenceOutput
from protocol.plan import NOTHING_DRAWN, StepResult
from protocol.requests import Adjustment
from scheduler.constraints import Constraints, void_draw
from scheduler.outgoing import Outgoing
from scheduler.plan_builder import StepRecord
from scheduler.planner import Planner
from scheduler.sequence import Request, Sequence, State
from scheduler.speculation import predicted
from scheduler.yielded import yielded


class Results:
    """Applies collected steps, and writes the one final output of each choice."""

    def __init__(self, planner: Planner, constraints: Constraints, outgoing: Outgoing) -> None:
        self._planner = planner
        self._constraints = constraints
        self._outgoing = outgoing
        self.generated_tokens = 0
        self.ended: list[Request] = []
        """Requests without a choice left, for the scheduler to forget."""

    def apply(self, record: StepRecord, result: StepResult) -> None:
        """The step has run. Results of choices that have ended meanwhile are dropped."""
        assert result.step == record.step
        ids, position = unpack_ids(result.ids), 0
        failures = {failure.row: failure.message for failure in result.failures}
        for sequence, entries in zip(record.scored, result.prompt_logprobs, strict=True):
            self._add_prompt_logprobs(sequence, entries)
        self._planner.memory.step_collected(record.step)
        asking: list[Sequence] = []
        for row, sequence in enumerate(record.rows):
            draws = record.draws[row]
            sequence.in_flight -= 1
            if row in failures:
                self._fail_request(sequence.request, failures[row])
            elif sequence.state is not State.FINISHED:
                sequence.computed = max(sequence.computed, record.ends[row])
                drawn = ids[position : position + draws]
                logprobs = result.logprobs[position : position + draws] if result.logprobs is not None else None
                self._advance(sequence, drawn, record.drafts.get(row, []), logprobs)
                if sequence.grammar is not None:
                    asking.append(sequence)
            position += draws
            self._planner.step_collected(sequence)
        self._constraints.request(asking)

    def begin(self, sequence: Sequence) -> None:
        """A choice enters the queue: what it must begin with, and what its output so far means (after a resume)."""
        last = sequence.tokens[-1] if sequence.output_tokens else None
        finish = self._end(sequence, last)
        if finish is None and sequence.reasoning is not None:
            self._keep_thinking_budget(sequence)
        if finish is None:
            finish = self._jump_forward(sequence, sequence.unsent)
        if finish is not None and sequence.end_length > sequence.prompt_length:
            self._finish(sequence, finish, [], None)

    def finish(self, sequence: Sequence, finish: Finish | None) -> None:
        """Ends the choice from outside, in any state. None: somebody else has written its end."""
        if sequence.state is State.FINISHED:
            return
        if finish is not None:
            self._finish(sequence, finish, [], None)
        else:
            self._close(sequence)

    def _advance(
        self, sequence: Sequence, drawn: list[int], draft: list[int], logprobs: list[IdLogprobs | None] | None
    ) -> None:
        if not drawn:
            self._planner.computed(sequence)
            if sequence.computed == sequence.end_length == sequence.prompt_length:
                self._finish(sequence, Finish("length"), [], None)  # only the prompt was wanted
            return
        if sequence.void_draws:
            sequence.void_draws -= 1
            return
        sequence.drawing -= len(drawn)
        if NOTHING_DRAWN in drawn:
            message = "no token is allowed here: the request's constraints exclude all of them"
            self._finish(sequence, Finish("error", error=ErrorInfo(message, 500, "server_error")), [], None)
            return
        new: list[int] = []
        finish = None
        for place, token in enumerate(drawn):
            finish = self._take(sequence, token)
            new.append(token)
            if finish is not None or (place < len(draft) and token != draft[place]):
                break  # what was drawn after an id that did not come was drawn from another text
        if sequence.may_speculate:
            self._planner.speculation.verified(sequence, draft, new)
            sequence.planned += len(new) - 1
            sequence.computed += len(new) - 1
        if finish is None and sequence.grammar is not None:
            finish = self._jump_forward(sequence, new)
        self._planner.computed(sequence)
        if logprobs is not None and sequence.request.message.sampling.logprobs is not None:
            reported = [entry for entry in logprobs[: len(new)] if entry is not None]
        else:
            reported = None
        if finish is None:
            self._emit(sequence, new, None, reported)
        else:
            self._finish(sequence, finish, new, reported)

    def _take(self, sequence: Sequence, token: int) -> Finish | None:
        """Appends a drawn id; what it does to reasoning and grammar; and whether it is the end."""
        grammar = sequence.grammar if sequence.grammar is not None and sequence.in_grammar else None
        sequence.tokens.append(token)
        self.generated_tokens += 1
        if grammar is not None:
            sequence.mask_asked = False
            sequence.held_mask = None
            if not grammar.accept((token,)):
                message = f"the grammar does not allow token {token}"
                return Finish("error", error=ErrorInfo(message, 500, "server_error"))
        if sequence.reasoning is not None:
            if sequence.mandatory and token == sequence.mandatory[0]:
                del sequence.mandatory[0]
            sequence.reasoning.feed(token)
            self._keep_thinking_budget(sequence)
        return self._end(sequence, token)

    def _end(self, sequence: Sequence, token: int | None) -> Finish | None:
        """Whether the choice ends with its newest token. An end id beats a length."""
        request = sequence.request
        if token is not None and token in request.end_ids:
            return Finish("stop", token if token in request.message.sampling.stop_token_ids else None)
        if len(sequence.tokens) >= sequence.end_length:
            return Finish("length")
        return None

    def _keep_thinking_budget(self, sequence: Sequence) -> None:
        """Reasoning that has used up its budget is closed: its marker's ids are the only ones allowed from here on."""
        reasoning, budget = sequence.reasoning, sequence.request.message.sampling.thinking_budget
        if budget is None or reasoning is None:
            return
        if reasoning.inside and reasoning.tokens >= budget and not sequence.mandatory:
            sequence.mandatory = reasoning.remaining_close()
            reason = f"the reasoning was closed after {reasoning.tokens} tokens"
            sequence.adjustments = (Adjustment("thinking_token_budget", "changed", reason),)

    def _jump_forward(self, sequence: Sequence, new: list[int]) -> Finish | None:
        """Appends the ids that the grammar forces, without drawing them: they are computed as one chunk.

        Not where logprobs are wanted: those come from draws. A draw in flight gets an empty mask.
        """
        if not sequence.in_grammar or sequence.request.message.sampling.logprobs is not None:
            return None
        grammar = sequence.grammar
        assert grammar is not None
        forced = list(grammar.forced_ids()[: sequence.end_length - len(sequence.tokens)])
        if not forced or not grammar.accept(forced):
            return None
        if sequence.drawing:
            void_draw(sequence)
        sequence.mask_asked = False
        sequence.tokens.extend(forced)
        self.generated_tokens += len(forced)
        if sequence.slot >= 0:
            sequence.forced.extend(forced)
        new.extend(forced)
        return self._end(sequence, forced[-1])

    def _add_prompt_logprobs(self, sequence: Sequence, entries: list[IdLogprobs]) -> None:
        request = sequence.request
        request.scored.extend(entries)
        if len(request.scored) == sequence.prompt_length:
            request.prompt_logprobs = request.scored

    def _emit(
        self, sequence: Sequence, new: list[int], finish: Finish | None, logprobs: list[IdLogprobs] | None
    ) -> None:
        request = sequence.request
        if sequence.unsent:
            new = sequence.unsent + new
            sequence.unsent = []
        prompt_logprobs = None
        if sequence.owes_prompt_logprobs and request.prompt_logprobs is not None:
            sequence.owes_prompt_logprobs = False
            prompt_logprobs = request.prompt_logprobs
        self._outgoing.add(
            request.message.detokenizer,
            SequenceOutput(  # by position: one is made per row and step
                request.id,
                request.attempt,
                sequence.index,
                pack_ids(new),
                finish,
                logprobs,
                prompt_logprobs,
                request.cached_tokens,
                sequence.reasoning.tokens if sequence.reasoning is not None else 0,
                sequence.retractions,
                sequence.adjustments if finish is not None else (),
                predicted(sequence),
            ),
        )

    def _finish(self, sequence: Sequence, finish: Finish, new: list[int], logprobs: list[IdLogprobs] | None) -> None:
        if sequence.grammar is not None:
            sequence.adjustments = (*sequence.adjustments, *yielded(sequence, finish))
        self._emit(sequence, new, finish, logprobs)
        self._close(sequence)

    def _close(self, sequence: Sequence) -> None:
        if sequence.state is State.WAITING and sequence.slot < 0:
            self._planner.queue.remove(sequence)
        sequence.move(State.FINISHED)
        sequence.grammar = None
        self._planner.let_go(sequence)
        request = sequence.request
        request.unfinished -= 1
        if request.unfinished == 0:
            self._planner.ended(request)
            self.ended.append(request)

    def _fail_request(self, request: Request, message: str) -> None:
        error = ErrorInfo(message, 500, "server_error")
        for sequence in request.sequences:
            self.finish(sequence, Finish("error", error=error))
