"""What the tokenizer manager does with each message of its inbox."""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from protocol.control import ControlReply, ControlRequest, PeerDown, PeerUp
from protocol.errors import RequestError, field_error
from protocol.links import request_owner
from protocol.outputs import Detokenized, Refused, Rendered, Tokenized
from protocol.requests import (
    AbortRequest,
    DetokenizeRequest,
    GenerateRequest,
    PeekCache,
    RenderRequest,
    TokenizeRequest,
)
from runtime.tombstones import Tombstones, aborts
from tokenizer_manager.answers import Answers
from tokenizer_manager.control_tokens import NeedsThread
from tokenizer_manager.dispatch import Dispatcher, Sender, unavailable
from tokenizer_manager.preparation import PreparedRequest, RequestPreparer, prompt_size
from tokenizer_manager.routing import Router

logger = logging.getLogger(__name__)

# A few milliseconds of rendering and tokenising: more would hold up everybody else's requests and aborts.
INLINE_CHARACTERS = 4_000

RECENT_ABORTS = 1_000
"""Aborts that a replica hears again when it comes up."""

Work = Callable[[bool], Any]
"""Computes an answer; its argument says whether it may take its time (in a thread) or must raise NeedsThread."""


@dataclass(frozen=True)
class ManagerSettings:
    """What a tokenizer manager knows of itself and of the deployment. `description` goes into its answer to "state"."""

    index: int
    replicas: int
    max_queued_requests: int
    evicts_low_priority: bool
    description: dict[str, Any]


class TokenizerManager:
    """Handles messages one at a time in an event loop; long work goes to `executor` and comes back by `call_soon`.

    Nothing that a message causes gets out of `handle`: a RequestError becomes a refusal, any other exception a refusal
    with status 500 and a line in the log.
    """

    def __init__(
        self,
        preparer: RequestPreparer,
        router: Router,
        outbox: Sender,
        executor: Executor,
        call_soon: Callable[[Callable[[], None]], Any],
        settings: ManagerSettings,
    ) -> None:
        self._preparer = preparer
        self._router = router
        self._outbox = outbox
        self._executor = executor
        self._call_soon = call_soon
        self._settings = settings
        self._dispatcher = Dispatcher(outbox, router, self._refuse, limit=settings.max_queued_requests)
        self._answers = Answers(outbox)
        self._tombstones = Tombstones()
        self._recent_aborts: deque[AbortRequest] = deque(maxlen=RECENT_ABORTS)
        self._preparing: dict[str, int] = {}
        self._aside = 0
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            GenerateRequest: self._generate,
            RenderRequest: self._render,
            TokenizeRequest: self._tokenize,
            DetokenizeRequest: self._detokenize,
            AbortRequest: self._abort,
            ControlRequest: self._control,
            PeekCache: self._peek,
        }

    @property
    def idle(self) -> bool:
        """Nothing is being prepared, and nothing waits for a replica."""
        return not self._preparing and not self._aside and not self._dispatcher.held

    def handle(self, message: Any) -> None:
        """One message of `TokenizerInbox`. Never raises."""
        try:
            self._handlers[type(message)](message)
        except Exception:
            logger.exception("a %s message could not be handled", type(message).__name__)
            self._give_up(message.request if isinstance(message, RenderRequest) else message)

    def peer_up(self, message: PeerUp) -> None:
        """After the outbox has connected to the peer."""
        if message.peer.role == "scheduler":
            self._router.up(message.peer.index)
            for abort in self._recent_aborts:  # it may run what was aborted before this process knew of it
                self._outbox.send("scheduler", message.peer.index, abort)
        if message.peer.role == "http":
            self._answers.peer_up(message.peer.index)
        if message.peer.role in ("scheduler", "detokenizer"):
            self._dispatcher.retry()

    def peer_down(self, message: PeerDown) -> None:
        """After the outbox has heard it: news of an older incarnation leaves the newer one's socket alone."""
        peer = message.peer
        if peer.role == "scheduler" and peer.index not in self._outbox.peers("scheduler"):
            self._router.down(peer.index)
            self._dispatcher.replica_died(peer.index, message.at_s)

    def tick(self) -> None:
        """Now and then: what has waited too long is refused."""
        self._dispatcher.expire()
        self._answers.expire()

    def _generate(self, request: GenerateRequest) -> None:
        request_id, attempt = request.request_id, request.attempt
        request_owner(request_id)  # an id without an owner has nobody to answer to
        if self._tombstones.covers(request_id, attempt):
            self._refuse(request_id, attempt, _aborted())
            return
        if self._preparing.get(request_id, -1) > attempt:
            return

        def work(patient: bool) -> PreparedRequest:
            return self._preparer.prepare(request, patient)

        def finish(prepared: PreparedRequest) -> None:
            if self._tombstones.covers(request_id, attempt):
                raise _aborted()
            self._dispatcher.send(prepared.engine, request.replica)

        def superseded() -> bool:
            # Whoever finishes takes the entry; an older attempt finds a newer one's, or none.
            if self._preparing.get(request_id) != attempt:
                return True
            del self._preparing[request_id]
            return False

        self._preparing[request_id] = attempt
        try:
            self._check_admission(request)
        except RequestError as error:
            superseded()
            self._refuse(request_id, attempt, error)
            return
        self._do(work, finish, request_id, attempt, aside=_is_long(request), superseded=superseded)

    def _give_up(self, message: Any) -> None:
        """Tells whoever waits for an answer to a message that could not even be looked at."""
        if isinstance(message, GenerateRequest | TokenizeRequest | DetokenizeRequest):
            attempt = message.attempt if isinstance(message, GenerateRequest) else 0
            if self._preparing.get(message.request_id) == attempt:
                del self._preparing[message.request_id]
            with contextlib.suppress(ValueError):  # an id that names no owner
                self._refuse(message.request_id, attempt, _failure("handled"))

    def _render(self, message: RenderRequest) -> None:
        request = message.request

        def work(patient: bool) -> Rendered:
            return self._preparer.render(request, patient)

        self._do(work, self._answer, request.request_id, request.attempt, aside=_is_long(request))

    def _tokenize(self, request: TokenizeRequest) -> None:
        now_s = time.time()

        def work(patient: bool) -> Tokenized:
            return self._preparer.tokenize(request, now_s, patient)

        aside = prompt_size(request.prompt) > INLINE_CHARACTERS
        self._do(work, self._answer, request.request_id, 0, aside=aside)

    def _detokenize(self, request: DetokenizeRequest) -> None:
        def work(patient: bool) -> Detokenized:
            return self._preparer.detokenize(request)

        self._do(work, self._answer, request.request_id, 0, aside=len(request.ids) > INLINE_CHARACTERS)

    def _answer(self, message: Rendered | Tokenized | Detokenized) -> None:
        self._answers.send(request_owner(message.request_id), message)

    def _abort(self, abort: AbortRequest) -> None:
        """Ends what is here, and asks every replica: only they know who has the request."""
        if abort.request_id:
            self._tombstones.bury(abort.request_id, abort.attempt)
            self._recent_aborts.append(abort)
        else:
            for request_id, attempt in self._preparing.items():
                if aborts(abort, request_id, attempt):
                    self._tombstones.bury(request_id, attempt)
        for request_id, attempt in self._dispatcher.abort(abort):
            self._refuse(request_id, attempt, _aborted())
        for replica in self._router.live:
            self._outbox.send("scheduler", replica, abort)

    def _control(self, request: ControlRequest) -> None:
        if request.what == "set_log_level":
            level = str(request.arguments.get("level", "")).upper()
            if level in ("DEBUG", "INFO", "WARNING", "ERROR"):  # the schedulers answer, and refuse any other
                logging.getLogger().setLevel(level)
        if request.what == "state":
            self._reply(request, payload=self._state())
        targets = self._router.live if request.replica is None else (request.replica,)
        sent = [replica for replica in targets if self._outbox.send("scheduler", replica, request)]
        if not sent and request.what != "state":
            # Nobody else would answer this question.
            which = "no replica is" if request.replica is None else f"replica {request.replica} is not"
            self._reply(request, ok=False, message=f"{which} up")

    def _peek(self, peek: PeekCache) -> None:
        """One replica answers: the one that would get such a prompt now."""
        replica = self._router.favourite(peek.prompt_ids, peek.namespace)
        if replica is None or not self._outbox.send("scheduler", replica, peek):
            worker = request_owner(peek.correlation_id)
            message = "no replica is up"
            reply = ControlReply(
                peek.correlation_id, worker, "tokenizer", self._settings.index, ok=False, message=message
            )
            self._answers.send(worker, reply)

    def _reply(
        self, request: ControlRequest, *, ok: bool = True, message: str = "", payload: dict[str, Any] | None = None
    ) -> None:
        reply = ControlReply(
            request.correlation_id, request.worker, "tokenizer", self._settings.index, ok, message, payload or {}
        )
        self._answers.send(request.worker, reply)

    def _state(self) -> dict[str, Any]:
        return {
            **self._settings.description,
            "replicas_up": list(self._router.live),
            "preparing": len(self._preparing),
            "held": self._dispatcher.held,
        }

    def _check_admission(self, request: GenerateRequest) -> None:
        """What can be said before any work is put into the request: RequestError 503 when every queue is full."""
        if request.replica is not None and not 0 <= request.replica < self._settings.replicas:
            raise field_error("replica", f"{request.replica} is none of the {self._settings.replicas} replicas")
        # A request that runs already is never refused for others' sake, and a probe must see the engine itself.
        if request.probe or request.attempt > 0 or self._settings.evicts_low_priority:
            return
        load = self._router.shortest_queue()
        if load is not None and load.waiting >= self._settings.max_queued_requests:
            retry_after_s = float(min(30, 1 + load.waiting // max(1, load.running)))
            raise unavailable(f"{load.waiting} requests are waiting already", "queue_full", retry_after_s)

    def _do(
        self,
        work: Work,
        finish: Callable[[Any], None],
        request_id: str,
        attempt: int,
        *,
        aside: bool,
        superseded: Callable[[], bool] = lambda: False,
    ) -> None:
        """Runs `work` here or in a thread, then `finish` here, unless a newer attempt has come in between."""

        def conclude(outcome: Callable[[], Any]) -> None:
            if not superseded():
                self._fenced(lambda: finish(outcome()), request_id, attempt)

        if not aside:
            try:
                result = work(False)
            except NeedsThread:
                pass
            except Exception as error:
                conclude(_raiser(error))
                return
            else:
                conclude(lambda: result)
                return

        def come_back(future: Any) -> None:
            def later() -> None:
                self._aside -= 1
                conclude(future.result)

            self._call_soon(later)

        self._aside += 1
        self._executor.submit(work, True).add_done_callback(come_back)

    def _fenced(self, action: Callable[[], None], request_id: str, attempt: int) -> None:
        try:
            action()
        except RequestError as error:
            self._refuse(request_id, attempt, error)
        except Exception:
            logger.exception("request %s could not be prepared", request_id)
            self._refuse(request_id, attempt, _failure("prepared"))

    def _refuse(self, request_id: str, attempt: int, error: RequestError) -> None:
        self._answers.send(request_owner(request_id), Refused(request_id, attempt, error.info))


def _is_long(request: GenerateRequest) -> bool:
    prompt = request.prompt
    from_request = getattr(prompt, "template", None) is not None  # rendered in a child, which has to be waited for
    return from_request or prompt_size(prompt) + len(request.prediction) > INLINE_CHARACTERS


def _raiser(error: Exception) -> Callable[[], Any]:
    def raise_it() -> Any:
        raise error

    return raise_it


def _failure(what: str) -> RequestError:
    return RequestError(f"the request could not be {what}", status=500, type="server_error", code="internal_error")


def _aborted() -> RequestError:
    # 499 as proxies log it: nobody waits for the answer, unless somebody else asked for the abort.
    return RequestError("the request was aborted before it was scheduled", status=499, code="aborted")
