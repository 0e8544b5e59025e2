"""The front end without processes: a ring that answers from a script, and a client that speaks ASGI."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from http_frontend.app import build_app
from http_frontend.front import Front
from protocol.control import ControlReply, ControlRequest, Role
from protocol.errors import ErrorInfo
from protocol.ids import pack_ids
from protocol.outputs import (
    Admitted,
    Detokenized,
    Finish,
    Refused,
    Rendered,
    TextBatch,
    TextOutput,
    Tokenized,
    TokenLogprob,
    TopLogprob,
)
from protocol.requests import (
    AbortRequest,
    Adjustment,
    DetokenizeRequest,
    GenerateRequest,
    PeekCache,
    RenderRequest,
    TokenizeRequest,
    TokensPrompt,
)
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.server_args import ServerArgs
from runtime.status_board import StatusBoard

ROLES: tuple[Role, ...] = ("tokenizer", "scheduler", "detokenizer")
PROMPT_TOKENS = 7


def logprob(token: str, token_id: int = 1, top: int = 0) -> TokenLogprob:
    return TokenLogprob(
        token,
        token_id,
        -0.5,
        token.encode(),
        1,
        [TopLogprob(f"t{rank}", rank, -1.0 - rank, b"t%d" % rank) for rank in range(top)],
    )


class FakeRing:
    """Plays tokenizer manager, scheduler and detokenizer. `words` are the pieces of every answer; `hold` keeps everything
    back, `silent` the outputs; `refusal`, `adjustments` and `error_after` are what they say."""

    def __init__(self) -> None:
        self.words = ["Hello", " wor", "ld"]
        self.finish = Finish("stop")
        self.refusal: ErrorInfo | None = None
        self.adjustments: tuple[Adjustment, ...] = ()
        self.error_after: int | None = None
        self.hold = False
        self.silent = False
        self.down: set[tuple[Role, int]] = set()
        self.sent: list[Any] = []
        self.handle: Callable[[Any], None] = lambda message: None

    # What InFlight and Questions need of an outbox
    def peers(self, role: Role) -> list[int]:
        return [] if (role, 0) in self.down else [0]

    def send(self, role: Role, index: int, message: msgspec.Struct) -> bool:
        self.sent.append(message)
        asyncio.get_running_loop().call_soon(self._answer, message)
        return True

    @property
    def requests(self) -> list[GenerateRequest]:
        return [message for message in self.sent if isinstance(message, GenerateRequest)]

    @property
    def aborts(self) -> list[AbortRequest]:
        return [message for message in self.sent if isinstance(message, AbortRequest)]

    def _answer(self, message: Any) -> None:
        if isinstance(message, GenerateRequest):
            if self.refusal is not None:
                self.handle(Refused(message.request_id, message.attempt, self.refusal))
            elif not self.hold:
                self.admit(message)
                if not self.silent:
                    asyncio.get_running_loop().call_later(0.001, self.play, message)
        elif isinstance(message, ControlRequest):
            payload = {"model_runner": {"logit_bias_bytes": 512}}
            self.handle(ControlReply(message.correlation_id, message.worker, "tokenizer", 0))
            self.handle(ControlReply(message.correlation_id, message.worker, "scheduler", 0, payload=payload))
        elif isinstance(message, PeekCache):
            self.handle(ControlReply(message.correlation_id, 0, "scheduler", 0, payload={"cached_tokens": 2}))
        elif isinstance(message, TokenizeRequest):
            if self.refusal is not None:
                self.handle(Refused(message.request_id, 0, self.refusal))
            self.handle(Tokenized(message.request_id, pack_ids([1, 2, 3]), ["a", "b", "c"], 512, self.adjustments))
        elif isinstance(message, DetokenizeRequest):
            self.handle(Detokenized(message.request_id, "abc"))
        elif isinstance(message, RenderRequest):
            inner = message.request
            messages = b'[{"content":18446744073709551617}]'
            ids, sampling = pack_ids([1, 2]), {"temperature": 0.0}
            self.handle(Rendered(inner.request_id, "<p>", ids, "chatml", "registry", messages, sampling))

    def admit(self, request: GenerateRequest) -> None:
        ids = request.prompt.ids if isinstance(request.prompt, TokensPrompt) else pack_ids(range(PROMPT_TOKENS))
        self.handle(
            Admitted(
                request.request_id,
                request.attempt,
                len(ids) // 4,
                request.n,
                prompt_ids=ids if request.wants_prompt_ids else None,
                adjustments=self.adjustments,
            )
        )

    def play(self, request: GenerateRequest, place: int = 0) -> None:
        """Every choice's word at `place`, one TextBatch a word and turn of the loop, then the ends."""
        limit = request.sampling.max_tokens
        words = self.words[: limit if limit is not None else None]
        finish = Finish("length") if limit is not None and limit < len(self.words) else self.finish
        last = place == len(words) - 1
        if self.error_after == place:
            finish, last = Finish("error", error=ErrorInfo("out of memory", 500, "server_error", code="oom")), True
        end = finish if last else None
        self.handle(TextBatch([self.output(request, index, place, words[place], end) for index in range(request.n)]))
        if not last:
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: loop.call_soon(lambda: loop.call_soon(self.play, request, place + 1)))

    def output(self, request: GenerateRequest, index: int, place: int, word: str, finish: Finish | None) -> TextOutput:
        top = request.sampling.logprobs
        scores = request.sampling.prompt_logprobs
        return TextOutput(
            request.request_id,
            request.attempt,
            index,
            word,
            pack_ids([100 + place]),
            place + 1,
            finish,
            logprobs=None if top is None else [logprob(word, 100 + place, top)],
            prompt_logprobs=[None, *(logprob("p", 5, scores) for _ in range(PROMPT_TOKENS - 1))]
            if scores is not None and place == 0
            else None,
            cached_tokens=4 if finish else 0,
            prediction=(place, 1) if request.prediction else None,
        )


class Served:
    """A front end under test: `client` calls it, `ring` stands behind it."""

    def __init__(self, config: EngineConfig, board: StatusBoard) -> None:
        self.ring = FakeRing()
        self.front = Front(config, 0, self.ring, board)
        self.ring.handle = self.front.handle
        self.app = build_app(self.front)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", **options) as client:
            yield client

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One call in a loop of its own."""

        async def run() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, path, **options)

        return asyncio.run(run())

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.call("POST", path, json=body, **options)

    def chat(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", chat_body(**fields))

    def complete(self, **fields: Any) -> httpx.Response:
        return self.post(
            "/v1/completions", {"model": "tiny", "prompt": "Once", "max_tokens": 16, "temperature": 0.7} | fields
        )


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.7} | fields


def events(response: httpx.Response) -> list[Any]:
    """The data of a stream, decoded, "[DONE]" as it is."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else msgspec.json.decode(line) for line in lines]


def make_config(
    run_dir: Path, *, tool_call_parser: str | None = None, reasoning_parser: str | None = None, **flags: Any
) -> EngineConfig:
    model = ModelDescription(
        name="org/tiny",
        path="models/tiny",
        format="safetensors",
        served_names=("tiny", "org/tiny:v2"),
        architecture="LlamaForCausalLM",
        config={"model_type": "llama"},
        context_length=512,
        vocab_size=1000,
        eos_token_ids=(2,),
        bos_token_id=1,
        tokenizer_file="tokenizer.json",
    )
    return EngineConfig(
        args=ServerArgs(**flags),
        model=model,
        run_dir=str(run_dir),
        device="cpu",
        dtype="float32",
        quantization="none",
        attention_backend="torch",
        model_impl="native",
        page_size=16,
        kv_tokens=1024,
        max_running_requests=8,
        max_batch_tokens=256,
        chunked_prefill_size=128,
        lookahead=0,
        threads=1,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        version="0.1.0",
        draft_tokens=8,
    )
