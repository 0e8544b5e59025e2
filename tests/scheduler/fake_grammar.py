"""Grammars of fixed steps, and what they make of the fake model."""

import json
from collections.abc import Sequence as Items

from protocol.errors import ErrorInfo
from protocol.sampling import GrammarSpec, ReasoningSpan
from scheduler.grammar.interface import GrammarState, GrammarTemplate
from scheduler.reasoning import ReasoningTracker
from tests.scheduler.fake_model import EOS, VOCABULARY, next_token


class StepGrammar:
    """Allowed ids step by step, then only end ids. A step of one id is forced."""

    def __init__(self, steps: list[list[int]], end_ids: tuple[int, ...]) -> None:
        self.steps, self.end_ids, self.at = steps, end_ids, 0
        self.finished = False

    def allowed(self) -> list[int]:
        if self.finished:
            return []
        return self.steps[self.at] if self.at < len(self.steps) else list(self.end_ids)

    def accept(self, ids: Items[int]) -> bool:
        at = self.at
        for token in ids:
            if token not in self.allowed():
                self.at = at
                return False
            self.finished = self.at == len(self.steps)
            self.at += not self.finished
        return True

    def forced_ids(self) -> tuple[int, ...]:
        forced = []
        for step in self.steps[self.at :]:
            if len(step) > 1:
                break
            forced += step
        return tuple(forced)


class StepTemplate:
    def __init__(self, steps: list[list[int]]) -> None:
        self._steps = steps

    def new_state(self, end_ids: tuple[int, ...]) -> GrammarState:
        return StepGrammar(self._steps, end_ids)


class FakeGrammarBackend:
    """A spec's text is a JSON list of steps, or "bad". `slow` masks are late for so many looks; `stuck` ones for ever."""

    def __init__(self, slow: int = 0) -> None:
        self.slow = slow
        self.error: ErrorInfo | None = None
        self.compiled: list[str] = []
        self.cancelled: list[int] = []
        self._outcomes: list[tuple[int, GrammarTemplate | ErrorInfo]] = []
        self._asked: dict[int, int] = {}
        self.hold = False

    def compile(self, spec: GrammarSpec) -> int:
        self.compiled.append(spec.text)
        ticket = len(self.compiled)
        bad = ErrorInfo("no such keyword", param="response_format")
        self._outcomes.append((ticket, bad if spec.text == "bad" else StepTemplate(json.loads(spec.text))))
        return ticket

    def cancel(self, ticket: int) -> None:
        self.cancelled.append(ticket)

    def poll(self) -> list[tuple[int, GrammarTemplate | ErrorInfo]]:
        if self.hold:
            return []
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def request_masks(self, states: Items[GrammarState]) -> None:
        for state in states:
            assert isinstance(state, StepGrammar)
            self._asked[id(state)] = self.slow

    def collect_masks(self, states: Items[GrammarState], timeout_s: float) -> tuple[bytes, list[int]]:
        words, late = b"", []
        for position, state in enumerate(states):
            assert isinstance(state, StepGrammar)
            if self._asked[id(state)] > 0:
                self._asked[id(state)] -= 1
                late.append(position)
                mask = 0
            else:
                mask = sum(1 << token for token in state.allowed())
            words += mask.to_bytes(-(-VOCABULARY // 32) * 4, "little")
        return words, late

    def failure(self, state: GrammarState) -> ErrorInfo | None:
        return self.error

    def statistics(self) -> dict[str, float]:
        return {"compilations": float(len(self.compiled))}

    def close(self) -> None:
        pass


def expected_constrained(
    prompt: Items[int],
    seed: int,
    max_tokens: int,
    steps: list[list[int]] | None = None,
    span: ReasoningSpan | None = None,
    budget: int | None = None,
    endless: bool = False,
) -> list[int]:
    """What an undisturbed run answers under a grammar of fixed steps and a thinking budget; `endless`: ignore_eos."""
    ids, mandatory = list(prompt), list[int]()
    grammar = None if steps is None else StepGrammar(steps, (EOS,))
    tracker = None if span is None else ReasoningTracker(span, reopens=grammar is None)
    while len(ids) < len(prompt) + max_tokens:
        inside = tracker is not None and tracker.inside
        if tracker is not None and inside and budget is not None and tracker.tokens >= budget and not mandatory:
            mandatory = tracker.remaining_close()
        constrained = grammar is not None and not inside
        allowed = mandatory[:1] or None
        if grammar is not None and not mandatory:
            allowed = grammar.allowed() if constrained else [token for token in range(VOCABULARY) if token != EOS]
        ids.append(next_token(seed, ids, allowed))
        mandatory = mandatory[1:]
        if grammar is not None and constrained:
            assert grammar.accept(ids[-1:])
        if tracker is not None:
            tracker.feed(ids[-1])
        if ids[-1] == EOS and (grammar is not None or not endless):
            break
    return ids[len(prompt) :]
