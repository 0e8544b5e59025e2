"""The text of one choice on its way out: ids in, whole tokens with their text out, and exactly one final output."""

from collections import deque
from dataclasses import dataclass

from detokenizer.decoder import TextDecoder, make_decoder
from detokenizer.logprob_text import logprob_texts, prompt_logprob_texts
from detokenizer.pieces import Pieces
from detokenizer.reasoning import ReasoningTracker
from detokenizer.stop_matcher import StopMatch, StopMatcher, StopStrings, StopTimeout, make_matcher
from protocol.errors import ErrorInfo
from protocol.ids import TOKEN_BYTES, pack_ids, unpack_ids
from protocol.outputs import Admitted, Finish, SequenceOutput, StopFound, TextOutput, TokenLogprob
from protocol.requests import Adjustment


@dataclass(frozen=True)
class TextPlan:
    """What the choices of a request share."""

    pieces: Pieces
    admitted: Admitted
    stop_strings: StopStrings | None
    hidden_ids: frozenset[int]
    prompt_tail: tuple[int, ...]

    def new_decoder(self) -> TextDecoder:
        options = self.admitted.detokenize
        decoder = make_decoder(self.pieces, self.hidden_ids, options.spaces_between_special_tokens)
        decoder.prime(self.prompt_tail)
        return decoder

    def new_matcher(self) -> StopMatcher | None:
        return make_matcher(self.stop_strings, self.admitted.detokenize.stop_regex)

    def new_reasoning(self) -> ReasoningTracker | None:
        """None if stop strings apply everywhere."""
        span, options = self.admitted.reasoning_span, self.admitted.detokenize
        if span is None or options.stop_in_reasoning:
            return None
        return ReasoningTracker(span, self.pieces.vocabulary.token_bytes)


class Choice:
    """Holds tokens back while their text is incomplete or may begin a stop match, together with their logprobs.

    Positions in text and counts of tokens are those of the whole answer, what was delivered before a resume included.
    `stop_found` is set with the final output where the choice has ended here and the scheduler doesn't know yet.
    """

    def __init__(self, plan: TextPlan, index: int, delivered: bytes = b"") -> None:
        self.stop_found: StopFound | None = None
        self._plan = plan
        self._index = index
        self._decoder = plan.new_decoder()
        self._matcher = plan.new_matcher()
        self._reasoning = plan.new_reasoning() if self._matcher is not None else None
        self._interval = plan.admitted.detokenize.stream_interval
        self._min_tokens = plan.admitted.detokenize.min_tokens
        self._ids: list[int] = []  # held
        self._texts: list[str] = []  # held: what became certain with each of them
        self._logprobs: list[TokenLogprob] | None = None  # held
        self._borders: deque[tuple[int, int]] = deque()  # (tokens, text) where an output may end
        self._tokens = self._text = 0  # seen
        self._sent_tokens = self._sent_text = 0
        self._unmatched = 0  # characters of reasoning, which the matcher has not seen
        self._prompt_logprobs: list[TokenLogprob | None] | None = None
        self._cached_tokens = self._reasoning_tokens = self._retractions = 0
        self._prediction: tuple[int, int] | None = None
        self._adjustments: tuple[Adjustment, ...] = ()
        self._passes = self._matcher is None and self._interval == 1
        if delivered:
            self._replay(unpack_ids(delivered))

    def add(self, output: SequenceOutput) -> TextOutput | None:
        """The output that may leave now: None while there is too little, the final one at a stop match or a finish."""
        if self._passes and not self._ids and _is_one_token(output) and self._tells_nothing():
            return self._pass_through(output)
        self._note(output)
        ids = unpack_ids(output.ids)
        finish = output.finish
        shown = len(ids) if finish is None else len(ids) - self._is_trimmed(ids, finish)
        try:
            for token_id in ids[:shown]:
                match = self._push(token_id)
                if match is not None:
                    return self._stopped(match, tell=finish is None)
            if finish is None:
                return self._released()
            for token_id in ids[shown:]:
                self._hold(token_id, "")
            match = self._end_text()
            if match is not None and finish.reason in ("stop", "length"):
                return self._stopped(match, tell=False)
        except StopTimeout as timeout:
            return self._timed_out(timeout, tell=finish is None)
        return self._output(len(self._ids), finish)

    def _tells_nothing(self) -> bool:
        return self._prompt_logprobs is None and not self._adjustments

    def _pass_through(self, output: SequenceOutput) -> TextOutput | None:
        """What nearly every output is, without the books that holding back needs: one token, nothing before it."""
        token_id = int.from_bytes(output.ids, "little", signed=True)
        text = self._decoder.push(token_id)
        self._note(output)
        if self._decoder.open:
            self._hold(token_id, text)
            return None
        self._tokens += 1
        self._text += len(text)
        self._sent_tokens += 1
        self._sent_text += len(text)
        return TextOutput(
            output.request_id,
            output.attempt,
            output.index,
            text,
            output.ids,
            self._sent_tokens,
            cached_tokens=self._cached_tokens,
            reasoning_tokens=self._reasoning_tokens,
            retractions=self._retractions,
            prediction=self._prediction,
        )

    def _note(self, output: SequenceOutput) -> None:
        """Keeps what an output says beside its ids: the tokens that it tells about may be held back."""
        if output.logprobs is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs += logprob_texts(self._plan.pieces, output.logprobs)
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = prompt_logprob_texts(self._plan.pieces, output.prompt_logprobs)
        if output.adjustments:
            self._adjustments += output.adjustments
        self._cached_tokens = output.cached_tokens or self._cached_tokens
        # It may shrink: the first tokens of a marker are reasoning until the marker is whole.
        self._reasoning_tokens = output.reasoning_tokens
        self._retractions = output.retractions or self._retractions
        self._prediction = output.prediction

    def _replay(self, ids: list[int]) -> None:
        """Takes in what the client has already: the text continues behind it."""
        for token_id in ids:
            self._push(token_id)
        self._release_counts(len(self._ids))

    def _is_trimmed(self, ids: list[int], finish: Finish) -> bool:
        """True if the last id is the end token, which is no part of the text unless asked for."""
        if finish.reason != "stop" or not ids or self._plan.admitted.detokenize.include_stop:
            return False
        return ids[-1] == finish.matched or (finish.matched is None and ids[-1] in self._plan.admitted.eos_token_ids)

    def _push(self, token_id: int) -> StopMatch | None:
        text = self._decoder.push(token_id)
        self._hold(token_id, text)
        match = None if self._matcher is None else self._look_for_stop(self._matcher, token_id, text)
        if not self._decoder.open:
            self._borders.append((self._tokens, self._text))
        return match

    def _hold(self, token_id: int, text: str) -> None:
        self._ids.append(token_id)
        self._texts.append(text)
        self._tokens += 1
        self._text += len(text)

    def _look_for_stop(self, matcher: StopMatcher, token_id: int, text: str) -> StopMatch | None:
        in_reasoning = self._reasoning is not None and self._reasoning.push(token_id)
        if in_reasoning or self._tokens <= self._min_tokens:
            matcher.reset()
            self._unmatched += len(text)
            return None
        return matcher.push(text)

    def _end_text(self) -> StopMatch | None:
        """Adds the text that was still open to the last token."""
        text = self._decoder.finish()
        if not text or not self._texts:
            return None
        self._texts[-1] += text
        self._text += len(text)
        if self._matcher is None or (self._reasoning is not None and self._reasoning.inside):
            return None
        return self._matcher.push(text)

    def _released(self) -> TextOutput | None:
        """The tokens up to the last border before what may be a stop match, if they are enough for an output."""
        safe = self._text - (0 if self._matcher is None else self._matcher.partial)
        borders = self._borders
        tokens = self._sent_tokens
        reached = None
        while borders and borders[0][1] <= safe:
            reached = borders.popleft()
            tokens = reached[0]
        if tokens - self._sent_tokens < self._interval:
            if reached is not None:
                borders.appendleft(reached)
            return None
        return self._output(tokens - self._sent_tokens, None)

    def _stopped(self, match: StopMatch, *, tell: bool) -> TextOutput:
        include = self._plan.admitted.detokenize.include_stop
        end = self._unmatched + (match.end if include else match.start)
        # An output may hold tokens behind the match, and its count is theirs, too.
        self._reasoning_tokens = min(self._reasoning_tokens, self._tokens)
        if tell:
            self.stop_found = self._stop_message(error=False)
        return self._output(len(self._ids), Finish("stop", match.matched), cut=max(0, end - self._sent_text))

    def _timed_out(self, timeout: StopTimeout, *, tell: bool) -> TextOutput:
        if tell:
            self.stop_found = self._stop_message(error=True)
        error = ErrorInfo(str(timeout), param="stop_regex", code="stop_regex_timeout")
        return self._output(len(self._ids), Finish("error", error=error))

    def _stop_message(self, *, error: bool) -> StopFound:
        admitted = self._plan.admitted
        return StopFound(admitted.request_id, admitted.attempt, self._index, self._tokens, error)

    def _output(self, count: int, finish: Finish | None, cut: int | None = None) -> TextOutput:
        """The first `count` held tokens as an output."""
        text = "".join(self._texts[:count])
        ids = pack_ids(self._ids[:count])
        logprobs = self._logprobs
        if logprobs is not None:
            self._logprobs = logprobs[count:]
            logprobs = logprobs[:count]
        admitted, prompt_logprobs, adjustments = self._plan.admitted, self._prompt_logprobs, self._adjustments
        self._prompt_logprobs, self._adjustments = None, ()
        self._release_counts(count)
        return TextOutput(
            admitted.request_id,
            admitted.attempt,
            self._index,
            text if cut is None else text[:cut],
            ids,
            self._sent_tokens,
            finish,
            logprobs,
            prompt_logprobs,
            self._cached_tokens,
            self._reasoning_tokens,
            self._retractions,
            adjustments,
            self._prediction,
        )

    def _release_counts(self, count: int) -> None:
        self._sent_tokens += count
        self._sent_text += sum(map(len, self._texts[:count]))
        del self._ids[:count]
        del self._texts[:count]
        if not self._ids:
            self._borders.clear()


def _is_one_token(output: SequenceOutput) -> bool:
    """And nothing else."""
    return (
        len(output.ids) == TOKEN_BYTES
        and output.finish is None
        and output.logprobs is None
        and output.prompt_logprobs is None
        and not output.adjustments
    )
