"""One choice's place in its grammar, with the mask of its next token and an account of what its masks have cost."""

import math
import threading
import time
from collections.abc import Sequence

import numpy
import xgrammar

from protocol.errors import ErrorInfo
from scheduler.grammar.forced import ForcedText

BURST_S = 0.5
PER_TOKEN_S = 0.003
"""A state may take BURST_S, and PER_TOKEN_S for each token: a usual grammar takes a hundredth of that."""

LONGEST_FILL_S = 2.0

WORD_BITS = 32


class XGrammarState:
    """Of the scheduler's loop; while `filling`, its mask waits for a mask thread or is with one."""

    def __init__(
        self, compiled: xgrammar.CompiledGrammar, end_ids: tuple[int, ...], vocab_size: int, forced: ForcedText
    ) -> None:
        self.failure: ErrorInfo | None = None
        self.finished = False
        self._lock = threading.Lock()  # whoever uses the matcher holds it
        self.filling = False
        self.filling_since = math.inf  # still in line
        self.mask_is_current = False
        self.mask = numpy.zeros((1, -(-vocab_size // WORD_BITS)), dtype=numpy.int32)
        self._matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(end_ids) or None)
        self._forced = forced
        self._last_word = numpy.int32((1 << vocab_size % WORD_BITS) - 1 if vocab_size % WORD_BITS else -1)
        self._spent_s = 0.0
        self._tokens = 0

    def accept(self, ids: Sequence[int]) -> bool:
        """See GrammarState. Waits for a mask that is just being filled (the scheduler may decide a token meanwhile)."""
        if self.failure is not None or not self._lock.acquire(timeout=LONGEST_FILL_S):
            return False
        began = time.thread_time()
        try:
            for count, token_id in enumerate(ids):
                if self._matcher.is_terminated() or not self._matcher.accept_token(token_id):
                    self._matcher.rollback(count)
                    return False
            self._tokens += len(ids)
            self.mask_is_current = self.mask_is_current and not ids
            self.finished = bool(self._matcher.is_terminated())
        finally:
            self._charge(time.thread_time() - began)
            self._lock.release()
        return True

    def forced_ids(self) -> tuple[int, ...]:
        """See GrammarState. What the grammar forces is accepted on trial: a token that it would not draw ends the run."""
        if self.finished or self.failure is not None or not self._lock.acquire(blocking=False):
            return ()
        try:
            ids = self._forced.ids(self._matcher.find_jump_forward_string())
            accepted = 0
            for token_id in ids:
                if not self._matcher.accept_token(token_id):
                    break
                accepted += 1
            if accepted:
                self._matcher.rollback(accepted)
            return ids[:accepted]
        finally:
            self._lock.release()

    def fill(self) -> None:
        """Fills the mask; in a mask thread."""
        with self._lock:
            began = time.thread_time()
            try:
                if self.finished:
                    self.mask[:] = 0
                else:
                    self._matcher.fill_next_token_bitmask(self.mask, 0)
                    self.mask[0, -1] &= self._last_word  # xgrammar allows what lies beyond the vocabulary
            except RuntimeError as error:
                self.failure = _failure(f"the grammar has no next token: {error}")
            self._charge(time.thread_time() - began)
            self.mask_is_current = True

    def check_time(self, now: float) -> None:
        """Fails a state whose mask has been under way for too long; its thread may take longer still."""
        if self.filling and self.failure is None and now - self.filling_since > LONGEST_FILL_S:
            self.failure = _failure("the grammar takes too long: its next tokens could not be found in time")

    def _charge(self, seconds: float) -> None:
        self._spent_s += seconds
        if self._spent_s > BURST_S + PER_TOKEN_S * self._tokens and self.failure is None:
            self.failure = _failure("the grammar takes too long: it is too ambiguous for this text")


def _failure(message: str) -> ErrorInfo:
    return ErrorInfo(message, code="grammar_too_complex")


class XGrammarTemplate:
    """A compiled grammar, shared by all its states."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, vocab_size: int, forced: ForcedText) -> None:
        self.size_bytes = int(compiled.memory_size_bytes)
        self._compiled = compiled
        self._vocab_size = vocab_size
        self._forced = forced

    def new_state(self, end_ids: tuple[int, ...]) -> XGrammarState:
        """A state at the beginning. It knows all end ids of the request (none: those of the model)."""
        return XGrammarState(self._compiled, end_ids, self._vocab_size, self._forced)
