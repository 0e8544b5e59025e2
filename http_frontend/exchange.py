"""One HTTP call and the requests it became: a chat is one, a batch of prompts is several with one mailbox."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from protocol.control import Role
from protocol.errors import ErrorInfo, RequestError
from protocol.ids import TOKEN_BYTES, count_ids
from protocol.outputs import Admitted, TextOutput
from protocol.requests import ChoiceProgress, GenerateRequest

MAX_PENDING_TOKENS = 65_536

Batch = list[tuple[int, TextOutput]]
"""(prompt position, output), at most one per choice."""

AtOnce = Callable[[Batch], bool]
"""Writes a batch without waiting; False, and nothing done, if that can't be."""


@dataclass(slots=True)
class Progress:
    """What has been delivered of one choice: enough to have it continued elsewhere."""

    ids: bytearray = field(default_factory=bytearray)
    finished: bool = False
    texts: list[str] = field(default_factory=list)
    """Only under --log-requests."""


class Flight:
    """One request in flight. `attempt` counts its submissions; only outputs of the current one are taken.

    `acknowledged` is the newest attempt that was admitted, `crashes` how often in a row the request was being computed
    when its scheduler died, `tokens_at_crash` how far it was then; `losses` how often in a row a process of the role
    `lost_to` died over it, `tokens_at_loss` how far it was then.
    """

    __slots__ = (
        "acknowledged", "admitted", "attempt", "began_s", "crashes", "exchange", "last_s", "losses", "lost_to",
        "position", "progress", "request", "scored", "tokenizer", "tokens_at_crash", "tokens_at_loss", "unfinished",
    )  # fmt: skip

    def __init__(self, request: GenerateRequest, exchange: "Exchange", position: int) -> None:
        self.request = request
        self.exchange = exchange
        self.position = position
        self.attempt = 0
        self.tokenizer: int | None = None
        self.admitted: Admitted | None = None
        self.progress = [Progress() for _ in range(request.n)]
        self.unfinished = request.n
        self.acknowledged = -1
        self.crashes = 0
        self.tokens_at_crash = 0
        self.losses = 0
        self.lost_to: Role | None = None
        self.tokens_at_loss = 0
        self.scored = False
        self.began_s = self.last_s = time.monotonic()

    @property
    def delivered_tokens(self) -> int:
        return sum(len(progress.ids) for progress in self.progress) // TOKEN_BYTES

    def submission(self) -> GenerateRequest:
        """The request as it is sent now: the first time as it came, later with what has been delivered."""
        if self.attempt == 0:
            return self.request
        resume = tuple(
            ChoiceProgress(index, bytes(progress.ids), progress.finished)
            for index, progress in enumerate(self.progress)
            if progress.ids or progress.finished
        )
        sampling = self.request.sampling
        if self.scored:
            # Prompt logprobs have been delivered; asking again would compute the whole prompt for nothing.
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=None)
        return msgspec.structs.replace(
            self.request, attempt=self.attempt, resume=resume, sampling=sampling, suspect=self.crashes > 1
        )


class Exchange:
    """The requests of one HTTP call. The handler awaits `admitted`, then `take` until `finished`.

    Outputs that come while the client is slow wait here and are merged when taken, so a stream that lags sends fewer,
    longer pieces. While nothing is in the way, outputs are written where they come in (`take`'s `at_once`) and the task
    sleeps on: waking it through all the layers of an application costs as much as writing. `close` must be called at the
    end; it aborts what still runs.
    """

    def __init__(self, requests: list[GenerateRequest], close: Callable[["Exchange"], None]) -> None:
        self.flights = [Flight(request, self, position) for position, request in enumerate(requests)]
        self.failure: ErrorInfo | None = None
        self.unfinished = len(requests)
        self.writing_since: float | None = None
        self.quiet_since = time.monotonic()
        self.cut: Callable[[], None] | None = None
        self._pending: Batch = []
        self._pending_tokens = 0
        self._ends = False  # the end of a choice is pending
        self._at_once: AtOnce | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._close = close

    async def admitted(self) -> list[Admitted]:
        """Waits until every request was admitted; RequestError if one was refused or failed."""
        while True:
            self._raise_failure()
            found = [flight.admitted for flight in self.flights if flight.admitted is not None]
            if len(found) == len(self.flights):
                return found
            await self._wait()

    async def take(self, at_once: AtOnce | None = None) -> Batch:
        """Everything new; [] when woken for nothing. RequestError once a request failed and all that came before has
        been taken. While this waits, outputs that end nothing go to `at_once`, and what that raises is raised here."""
        if not self._pending:
            self._raise_failure()
            if not self.finished:
                self._at_once = at_once
                try:
                    await self._wait()
                finally:
                    self._at_once = None
            if not self._pending:
                self._raise_failure()
        return self._take_pending()

    @property
    def finished(self) -> bool:
        """True once every choice has ended and its end has been taken."""
        return not self.unfinished and not self._pending and self.failure is None

    def deliver(self, position: int, output: TextOutput) -> None:
        """Puts the output down; `wake` must follow once all that is there has been."""
        self._pending.append((position, output))
        self._pending_tokens += count_ids(output.ids)
        self._ends = self._ends or output.finish is not None
        if self._pending_tokens > MAX_PENDING_TOKENS and self.writing_since is not None and self.cut is not None:
            self.cut()

    def fail(self, error: ErrorInfo) -> None:
        """Ends the whole call with an error, after what has been delivered. The first failure counts."""
        if self.failure is None:
            self.failure = error
        self.wake()

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._at_once is not None and self._pending and not self._ends and self.failure is None:
            batch = self._take_pending()
            try:
                written = self._at_once(batch)
            except Exception as error:  # this call's alone: others are served by whoever woke it
                waiter.set_exception(error)
                return
            if written:
                return
            self._pending = batch
        waiter.set_result(None)

    def close(self) -> None:
        self._close(self)

    def _take_pending(self) -> Batch:
        taken, self._pending, self._pending_tokens, self._ends = self._pending, [], 0, False
        return merge_outputs(taken) if len(taken) > 1 else taken

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise RequestError.from_info(self.failure)


def merge_outputs(outputs: Batch) -> Batch:
    """One output per choice, in the order in which each first appeared."""
    groups: dict[tuple[int, int], list[TextOutput]] = {}
    for position, output in outputs:
        groups.setdefault((position, output.index), []).append(output)
    return [(key[0], group[0] if len(group) == 1 else _joined(group)) for key, group in groups.items()]


def _joined(group: list[TextOutput]) -> TextOutput:
    last = group[-1]
    logprobs = [entry for output in group for entry in output.logprobs or ()]
    return msgspec.structs.replace(
        last,
        text="".join(output.text for output in group),
        ids=b"".join(output.ids for output in group),
        logprobs=logprobs if any(output.logprobs is not None for output in group) else None,
        prompt_logprobs=next((output.prompt_logprobs for output in group if output.prompt_logprobs is not None), None),
        cached_tokens=max(output.cached_tokens for output in group),
        adjustments=tuple(found for output in group for found in output.adjustments),
    )
