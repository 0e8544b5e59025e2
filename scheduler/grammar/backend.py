"""xgrammar behind `GrammarBackend`."""

import time
from collections import OrderedDict, deque
from collections.abc import Sequence

from protocol.errors import ErrorInfo, field_error
from protocol.sampling import GrammarSpec
from runtime.engine_config import EngineConfig
from runtime.tokenizer_loading import load_tokenizer
from runtime.vocabulary import Vocabulary
from scheduler.grammar.cache import GrammarCache, cache_key
from scheduler.grammar.compile_messages import CompileOutcome
from scheduler.grammar.compile_process import CompileProcess, worker_start
from scheduler.grammar.compiler import GrammarCompiler
from scheduler.grammar.forced import ForcedText
from scheduler.grammar.interface import GrammarState, GrammarTemplate
from scheduler.grammar.masks import MaskFiller
from scheduler.grammar.state import WORD_BITS, XGrammarState, XGrammarTemplate
from scheduler.grammar.tokens import tokenizer_info

CACHE_BYTES = 256 << 20
MAX_SPEC_CHARACTERS = 1 << 20
"""A longer schema or grammar is refused unread."""

_REFUSALS_REMEMBERED = 512
_TIMEOUT_REMEMBERED_S = 60.0

Key = tuple[str, ...]


class XGrammarBackend:
    """One per scheduler; called from its loop alone."""

    def __init__(self, config: EngineConfig, process: CompileProcess | None = None) -> None:
        model = config.model
        vocabulary = Vocabulary.load(model.tokenizer_file)
        info = tokenizer_info(vocabulary, model.vocab_size, model.eos_token_ids)
        start = worker_start(config)
        self._vocab_size = model.vocab_size
        self._forced = ForcedText(load_tokenizer(model.tokenizer_file), vocabulary)
        self._filler = MaskFiller(start.parallel)
        self._compiler = GrammarCompiler(start, info, process)
        self._cache: GrammarCache[XGrammarTemplate] = GrammarCache(CACHE_BYTES)
        self._refusals: OrderedDict[Key, tuple[CompileOutcome, float]] = OrderedDict()  # until when
        self._outcomes: deque[tuple[int, GrammarTemplate | ErrorInfo]] = deque()
        self._jobs: dict[int, Key] = {}
        self._waiting: dict[Key, tuple[int, dict[int, GrammarSpec]]] = {}  # job, its tickets
        self._key_of: dict[int, Key] = {}
        self._tickets = 0
        self._counts = dict.fromkeys(("compilations", "cache_hits", "refusals"), 0)
        self._mask_wait_s = 0.0

    def wait_ready(self, timeout_s: float) -> bool:
        """Until a compilation would begin at once; False if that takes longer."""
        return self._compiler.wait_ready(timeout_s)

    def compile(self, spec: GrammarSpec) -> int:
        """See GrammarBackend. Equal specs that are being compiled share one compilation."""
        self._tickets += 1
        ticket = self._tickets
        error = self._unread_refusal(spec)
        if error is not None:
            self._outcomes.append((ticket, error))
            return ticket
        key = cache_key(spec)
        known = self._cache.get(key)
        if known is not None:
            self._counts["cache_hits"] += 1
            self._outcomes.append((ticket, known))
            return ticket
        refusal = self._refusals.get(key)
        if refusal is not None and refusal[1] > time.monotonic():
            self._outcomes.append((ticket, _error(refusal[0], spec)))
            return ticket
        if key in self._waiting:
            self._waiting[key][1][ticket] = spec
        else:
            self._counts["compilations"] += 1
            self._waiting[key] = (ticket, {ticket: spec})
            self._jobs[ticket] = key
            self._compiler.submit(ticket, spec)
        self._key_of[ticket] = key
        return ticket

    def cancel(self, ticket: int) -> None:
        key = self._key_of.pop(ticket, None)
        if key is None:
            self._outcomes = deque(outcome for outcome in self._outcomes if outcome[0] != ticket)
            return
        job, tickets = self._waiting[key]
        del tickets[ticket]
        if not tickets:
            del self._waiting[key]
            del self._jobs[job]
            self._compiler.cancel(job)

    def poll(self) -> list[tuple[int, GrammarTemplate | ErrorInfo]]:
        for outcome, compiled in self._compiler.take():
            key = self._jobs.pop(outcome.id)
            _, tickets = self._waiting.pop(key)
            template = None if compiled is None else XGrammarTemplate(compiled, self._vocab_size, self._forced)
            if template is None:
                self._remember_refusal(key, outcome)
            else:
                self._cache.put(key, template, template.size_bytes + sum(map(len, key)))
            for ticket, spec in tickets.items():
                del self._key_of[ticket]
                self._outcomes.append((ticket, _error(outcome, spec) if template is None else template))
        outcomes = list(self._outcomes)
        self._outcomes.clear()
        return outcomes

    def request_masks(self, states: Sequence[GrammarState]) -> None:
        self._filler.request(_ours(states))

    def collect_masks(self, states: Sequence[GrammarState], timeout_s: float) -> tuple[bytes, list[int]]:
        """See GrammarBackend."""
        ours = _ours(states)
        began = time.monotonic()
        while True:
            self._filler.request(ours)
            self._filler.wait(ours, began + timeout_s - time.monotonic())
            # A token accepted while its mask was under way: that mask is of no use, and the next one not asked for yet.
            outdated = any(not (state.mask_is_current or state.filling or state.failure) for state in ours)
            if not outdated or time.monotonic() - began >= timeout_s:
                break
        self._mask_wait_s += time.monotonic() - began
        late = [
            i for i, state in enumerate(ours) if state.filling or not state.mask_is_current or state.failure is not None
        ]
        nothing = bytes(4 * -(-self._vocab_size // WORD_BITS))
        rows = [state.mask.tobytes() for state in ours]
        for index in late:
            rows[index] = nothing
        return b"".join(rows), late

    def failure(self, state: GrammarState) -> ErrorInfo | None:
        assert isinstance(state, XGrammarState)
        return state.failure

    def statistics(self) -> dict[str, float]:
        return {
            **self._counts,
            "cached": len(self._cache),
            "cache_bytes": self._cache.bytes,
            "compiling": len(self._waiting),
            "compiler_restarts": self._compiler.restarts,
            "masks": self._filler.fills,
            "mask_wait_us": self._mask_wait_s * 1e6,
        }

    def close(self) -> None:
        self._compiler.close()
        self._filler.close()

    def _unread_refusal(self, spec: GrammarSpec) -> ErrorInfo | None:
        if len(spec.text) <= MAX_SPEC_CHARACTERS:
            return None
        message = f"the grammar has {len(spec.text)} characters; at most {MAX_SPEC_CHARACTERS} are supported"
        return field_error(spec.field, message, "grammar_too_large").info

    def _remember_refusal(self, key: Key, outcome: CompileOutcome) -> None:
        self._counts["refusals"] += 1
        self._refusals[key] = (outcome, float("inf") if outcome.lasting else time.monotonic() + _TIMEOUT_REMEMBERED_S)
        self._refusals.move_to_end(key)
        if len(self._refusals) > _REFUSALS_REMEMBERED:
            self._refusals.popitem(last=False)


def _ours(states: Sequence[GrammarState]) -> list[XGrammarState]:
    return [state for state in states if isinstance(state, XGrammarState)]


def _error(outcome: CompileOutcome, spec: GrammarSpec) -> ErrorInfo:
    if outcome.code == "compiler_failed":
        return ErrorInfo(outcome.error, 500, "server_error", spec.field, outcome.code)
    return field_error(spec.field, outcome.error, outcome.code).info
