"""Grammars of the running choices: compiled before admission, followed token by token, turned into masks for a step."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future, wait

from protocol.errors import ErrorInfo
from protocol.ids import TOKEN_BYTES
from scheduler.grammar.interface import GrammarBackend, GrammarState, GrammarTemplate
from scheduler.plan_builder import StepRecord
from scheduler.sequence import Request, Sequence, State

LONGEST_START_S = 30.0
MASK_WAIT_S = 0.010
"""How long a step waits for masks before it goes on without the rows whose mask is not ready."""


class Constraints:
    """Talks to the grammar backend, which is built in the background: at `start`, or when the first grammar arrives."""

    def __init__(self, build: Callable[[], "Future[GrammarBackend]"], vocab_size: int) -> None:
        self._build = build
        self._building: Future[GrammarBackend] | None = None
        self._backend: GrammarBackend | None = None
        self._unsent: list[Request] = []
        self._tickets: dict[int, list[Request]] = {}
        self._slow: dict[Sequence, None] = {}
        self._words = -(-vocab_size // 32)
        self._nothing = bytes(self._words * TOKEN_BYTES)
        self._open_masks: dict[tuple[int, ...], bytes] = {}
        self.slow_masks = 0

    @property
    def waiting(self) -> bool:
        """True while an outcome or a mask may come that no message announces: look again soon."""
        return bool(self._unsent or self._tickets or self._slow)

    def start(self) -> None:
        """Begins to build the backend, so that the first grammar does not have to wait for all of it."""
        if self._building is None:
            self._building = self._build()

    def wait(self) -> None:
        """Until the backend has been built, or has failed to be, or takes too long."""
        if self._building is not None:
            wait([self._building], LONGEST_START_S)

    def compile(self, request: Request) -> None:
        """Its outcome comes from `poll`."""
        self._unsent.append(request)
        self.start()

    def cancel(self, request: Request) -> None:
        """The request has ended before its grammar was ready."""
        if request in self._unsent:
            self._unsent.remove(request)
        ticket = request.ticket
        if ticket is not None and request in self._tickets.get(ticket, ()):
            self._tickets[ticket].remove(request)
            if not self._tickets[ticket]:
                del self._tickets[ticket]
                assert self._backend is not None
                self._backend.cancel(ticket)

    def poll(self) -> list[tuple[Request, GrammarTemplate | ErrorInfo]]:
        """Compilations that have come to an end."""
        if self._unsent and self._backend is None and self._building is not None and self._building.done():
            error = self._building.exception()
            if error is not None:
                self._building = None
                message = f"the grammar backend could not be started: {error}"
                unsent, self._unsent = self._unsent, []
                return [(request, ErrorInfo(message, 500, "server_error")) for request in unsent]
            self._backend = self._building.result()
        if self._backend is None:
            return []
        for request in self._unsent:
            spec = request.message.sampling.grammar
            assert spec is not None
            request.ticket = self._backend.compile(spec)
            self._tickets.setdefault(request.ticket, []).append(request)
        self._unsent.clear()
        if not self._tickets:
            return []
        return [
            (request, outcome) for ticket, outcome in self._backend.poll() for request in self._tickets.pop(ticket, ())
        ]

    def request(self, sequences: Items[Sequence]) -> None:
        """Starts to fill the masks of the next draw of those whose next token is the grammar's."""
        wanted = [s for s in sequences if not s.mask_asked and s.in_grammar and s.state is not State.FINISHED]
        if wanted:
            assert self._backend is not None
            for sequence in wanted:
                sequence.mask_asked = True
            self._backend.request_masks([_state(sequence) for sequence in wanted])

    def masks(self, record: StepRecord) -> bytes:
        """The masks of the step launched last, all results before it applied. Rows whose mask is not ready get an
        empty one: they draw nothing and their token is planned again once it is."""
        self.request(record.masked)
        rows: list[bytes | None] = [self._mask_without_waiting(sequence) for sequence in record.masked]
        missing = [sequence for sequence, row in zip(record.masked, rows, strict=True) if row is None]
        if missing:
            filled = iter(self._collect(missing, MASK_WAIT_S))
            for position, row in enumerate(rows):
                if row is None:
                    rows[position] = next(filled)
        return b"".join(row for row in rows if row is not None)

    def retry_slow(self) -> list[tuple[Sequence, ErrorInfo]]:
        """Looks whether masks that were late are there now; returns the choices that can't go on."""
        failed = []
        for sequence in list(self._slow):
            if sequence.state is State.FINISHED:
                del self._slow[sequence]
        if not self._slow:
            return []
        assert self._backend is not None
        sequences = list(self._slow)
        words, late = self._backend.collect_masks([_state(sequence) for sequence in sequences], 0.0)
        for position, sequence in enumerate(sequences):
            error = self._backend.failure(_state(sequence))
            if error is not None:
                failed.append((sequence, error))
            elif position not in late:
                del self._slow[sequence]
                sequence.slow_mask = False
                sequence.held_mask = self._row(words, position)
        return failed

    def statistics(self) -> dict[str, float]:
        figures = self._backend.statistics() if self._backend is not None else {}
        return {**figures, "slow_masks": float(self.slow_masks)}

    def close(self) -> None:
        building = self._building
        if building is not None and self._backend is None and not building.cancel() and building.exception() is None:
            self._backend = building.result()
        if self._backend is not None:
            self._backend.close()

    def _mask_without_waiting(self, sequence: Sequence) -> bytes | None:
        if sequence.void_draws or sequence.state is State.FINISHED:
            return self._nothing
        if sequence.mandatory:
            return self._only(sequence.mandatory[0])
        if sequence.in_grammar:
            return sequence.held_mask
        if sequence.grammar is None:
            return self._everything_but(())
        # Ending inside the reasoning would end the answer without a word of the grammar.
        beyond = sequence.reasoning.overshooting() if sequence.reasoning is not None else ()
        return self._everything_but((*sequence.request.end_ids, *beyond))

    def _collect(self, sequences: list[Sequence], timeout_s: float) -> list[bytes]:
        assert self._backend is not None
        words, late = self._backend.collect_masks([_state(sequence) for sequence in sequences], timeout_s)
        for position in late:
            sequence = sequences[position]
            sequence.slow_mask = True
            void_draw(sequence)
            sequence.planned -= 1  # the newest token is fed again, for the logits of the draw that did not happen
            self._slow[sequence] = None
            self.slow_masks += 1
        late_ones = set(late)
        return [self._nothing if k in late_ones else self._row(words, k) for k in range(len(sequences))]

    def _row(self, words: bytes, position: int) -> bytes:
        size = len(self._nothing)
        return words[position * size : (position + 1) * size]

    def _everything_but(self, ids: tuple[int, ...]) -> bytes:
        known = self._open_masks.get(ids)
        if known is None:
            mask = bytearray(b"\xff" * len(self._nothing))
            for token in ids:
                if token // 8 < len(mask):  # a tokenizer may know ids that the model has no logits for
                    mask[token // 8] &= ~(1 << (token % 8))
            if len(self._open_masks) >= 64:
                self._open_masks.clear()
            known = self._open_masks[ids] = bytes(mask)
        return known

    def _only(self, token: int) -> bytes:
        row = bytearray(self._nothing)
        row[token // 8] = 1 << (token % 8)
        return bytes(row)


def void_draw(sequence: Sequence) -> None:
    """The draw in flight gets an empty mask, so nothing will come of it."""
    sequence.drawing -= 1
    sequence.void_draws += 1


def _state(sequence: Sequence) -> GrammarState:
    assert sequence.grammar is not None
    return sequence.grammar
