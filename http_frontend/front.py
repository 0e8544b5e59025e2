"""What every route of this HTTP process shares: made once, given to the application, closed at the end."""

import functools
import logging
import re
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request

from http_frontend.body import read_json
from http_frontend.contract.field import Record
from http_frontend.contract.review import Review
from http_frontend.contract.sampling import ID_PATTERN, TWO_NAMES
from http_frontend.in_flight import InFlight, Sender
from http_frontend.last_plan import requests_of_last_plan
from http_frontend.metrics import Metrics
from http_frontend.models import ServedModels
from http_frontend.parsers import Parsers
from http_frontend.questions import Questions
from protocol.control import ControlReply, PeerUp
from protocol.outputs import Admitted, Refused, TextBatch
from runtime.engine_config import EngineConfig
from runtime.status_board import StatusBoard

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """One checked request body and what belongs to its answer."""

    fields: dict[str, Any]
    review: Review
    id: str
    model: str
    served_model: str
    created: int
    headers: dict[str, str]
    fairness_key: str


class Front:
    """The parts of the front end, and the way of each message to the part that it concerns."""

    def __init__(self, config: EngineConfig, worker: int, sender: Sender, board: StatusBoard) -> None:
        self.config = config
        self.worker = worker
        self.sender = sender
        self.board = board
        self.started_s = int(time.time())
        self.models = ServedModels(config, self.started_s)
        self.parsers = Parsers(config)
        self.metrics = Metrics(Path(config.run_dir), worker, self.models.names[0])
        last_plan = functools.partial(requests_of_last_plan, board)
        self.in_flight = InFlight(config, worker, sender, self.metrics, last_plan)
        self.questions = Questions(worker, sender)
        self.template_reads: frozenset[str] | None = None
        """Variables that the chat template in force reads, once a tokenizer manager has said so."""

    async def accept(self, request: Request, body: Record) -> Call:
        """Reads and checks the body of a generating call."""
        review = self.review(request)
        raw = await self.read(request, review)
        fields = body.check(raw, "", review)
        for wins, other in TWO_NAMES:
            if wins in fields and other in fields and fields[wins] != fields[other]:
                review.tell(other, "ignored", f"{wins} wins")
        given = fields.get("request_id") or fields.get("rid")
        # A batch may bring a list of ids; those name its requests, not the call.
        client_id = given if isinstance(given, str) else uuid.uuid4().hex
        if self.config.args.log_requests:
            # As JSON: a client's text can't forge lines of the log.
            logger.info("request %s to %s: %s", client_id, request.url.path, msgspec.json.encode(fields).decode())
        model, served_model = self.models.resolve(fields.get("model"), review)
        return Call(
            fields=fields,
            review=review,
            id=client_id,
            model=model,
            served_model=served_model,
            created=int(time.time()),
            headers={"x-request-id": request_id(request) or client_id},
            fairness_key=request.scope.get("candor.key", ""),
        )

    async def read(self, request: Request, review: Review) -> Any:
        """The body as JSON, within the limits of size and time."""
        args = self.config.args
        value, repeated = await read_json(request, args.max_body_bytes, args.slow_client_timeout_s)
        for path in repeated:
            review.tell(path[:128], "ignored", "the key is there more than once: the last one counts")
        return value

    def review(self, request: Request) -> Review:
        strict = self.config.args.strict or request.headers.get("x-candor-strict") == "1"
        return Review(self.config, strict)

    def handle(self, message: msgspec.Struct) -> None:
        """A message from the inbox."""
        if isinstance(message, TextBatch):
            self.in_flight.on_text(message)
        elif isinstance(message, Admitted):
            self.in_flight.on_admitted(message)
        elif isinstance(message, Refused):
            if not self.in_flight.on_refused(message):
                self.questions.on_refused(message)
        elif isinstance(message, ControlReply):
            self.questions.on_reply(message)
        else:
            self.questions.on_answer(message)  # type: ignore[arg-type]

    def on_peer_up(self, message: PeerUp) -> None:
        """The sender is connected to the peer already."""
        if message.peer.role == "tokenizer" and "template_reads" in message.info:
            self.template_reads = frozenset(message.info["template_reads"])
        self.in_flight.on_peer_up(message)
        self.questions.on_peer_change()

    def close(self) -> None:
        self.metrics.close()


def request_id(request: Request) -> str | None:
    """The client's x-request-id, if it is fit to be echoed."""
    value = request.headers.get("x-request-id")
    return value if value is not None and re.fullmatch(ID_PATTERN, value) else None


def front_of(request: Request) -> Front:
    front = request.app.state.front
    assert isinstance(front, Front)
    return front
