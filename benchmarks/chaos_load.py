"""Mixed load for chaos runs: what is asked, how each kind of client behaves, and what became of every request.

Every request is greedy or seeded, so that its answer is known: the one that an undisturbed server gave.
"""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import msgspec

Behaviour = Literal["stream", "whole", "slow", "leave", "abort"]
Outcome = Literal["whole", "left", "wrong", "error", "connection", "hung"]

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 24}, "soon": {"type": "boolean"}},
            "required": ["place", "soon"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 60}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "tags"],
}


@dataclass(frozen=True)
class Question:
    """A request whose answer can be compared; `path` and `body` without what a behaviour adds."""

    name: str
    path: str
    body: dict[str, Any]


def make_questions(answer_tokens: int) -> list[Question]:
    """Plain text, choices, penalties, stop strings, tools and grammars, a few of each."""

    def text(name: str, prompt: str, **fields: Any) -> Question:
        body = {"prompt": prompt, "max_tokens": answer_tokens, "temperature": 0, "ignore_eos": True} | fields
        return Question(name, "/v1/completions", body)

    def chat(name: str, content: str, **fields: Any) -> Question:
        messages = [{"role": "user", "content": content}]
        body = {"messages": messages, "max_tokens": answer_tokens, "temperature": 0.8, "seed": 11} | fields
        return Question(name, "/v1/chat/completions", body)

    named = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
    return [
        text("greedy", "The quick brown fox"),
        text("greedy-long-prompt", "The five boxing wizards jump quickly. " * 4),
        text("seeded", "def main(argv):", temperature=1.0, seed=3),
        text("choices", "Once upon a time", temperature=0.9, seed=5, n=2, max_tokens=answer_tokens // 2),
        text("penalties", "Again and again", temperature=0.7, seed=6, frequency_penalty=0.6, presence_penalty=0.3),
        text("bias", "Numbers: 1, 2,", temperature=1.0, seed=8, logit_bias={"20": 4.0, "21": -100}),
        text("stops", "How vexingly", temperature=1.2, seed=9, stop=["zzzz", "qqqq"]),
        chat("chat", "Hello, who are you?", ignore_eos=True),
        chat("chat-choices", "Say something.", n=2, seed=12, max_tokens=answer_tokens // 2, ignore_eos=True),
        # Room for one whole call: a stream shows the beginning of one that is cut off, a whole answer does not.
        chat(
            "tools",
            "The weather in Bonn?",
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "look_up"}},
            parallel_tool_calls=False,
            max_tokens=max(200, answer_tokens),
        ),
        chat("schema", "Describe a thing.", response_format=named, seed=13),
        chat("json", "An object, please.", response_format={"type": "json_object"}, seed=14),
    ]


@dataclass
class Record:
    """What became of one request."""

    question: str
    behaviour: Behaviour
    outcome: Outcome
    began_s: float
    ended_s: float
    detail: str = ""
    longest_pause_s: float = 0.0


@dataclass
class Pieces:
    """What a stream has brought so far, by choice."""

    texts: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    error: str = ""
    done: bool = False
    longest_pause_s: float = 0.0

    def take(self, data: str) -> None:
        if data == "[DONE]":
            self.done = True
            return
        chunk = msgspec.json.decode(data)
        if "error" in chunk:
            self.error = msgspec.json.encode(chunk["error"]).decode()
            return
        self.add(chunk["choices"])

    def add(self, choices: list[dict[str, Any]]) -> None:
        for choice in choices:
            index = choice["index"]
            said = choice.get("delta") or choice.get("message") or {}
            new = choice.get("text") or said.get("content") or ""
            for call in said.get("tool_calls") or ():
                # Ids of calls are random; names and arguments are not.
                new += (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
            self.texts[index] = self.texts.get(index, "") + new
            if choice.get("finish_reason"):
                self.finishes[index] = choice["finish_reason"]

    @property
    def answer(self) -> dict[int, tuple[str, str]]:
        return {index: (text, self.finishes.get(index, "")) for index, text in sorted(self.texts.items())}


Expected = dict[str, dict[int, tuple[str, str]]]


class Load:
    """Clients that ask one question after another until told to stop."""

    def __init__(
        self, url: str, questions: list[Question], seed: int, hang_s: float, expected: Expected | None = None
    ) -> None:
        self.records: list[Record] = []
        self.stopping = False
        self._questions = questions
        self._random = random.Random(seed)
        self._hang_s = hang_s
        self._ids = itertools.count()
        self.expected: Expected = expected or {}
        # A connection for each request: what becomes of one must not touch the next.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(hang_s), limits=limits)

    async def learn(self) -> Expected:
        """Asks every question twice of the undisturbed server: as a stream and whole, which must agree."""
        for question in self._questions:
            streamed, whole = Pieces(), Pieces()
            async for data in self.stream(question, {}):
                streamed.take(data)
            whole.add((await self._whole(question, {}))["choices"])
            if streamed.error or streamed.answer != whole.answer:
                raise RuntimeError(
                    f"{question.name} is not answered the same twice: {streamed.error or streamed.answer}"
                )
            self.expected[question.name] = whole.answer
        return self.expected

    async def client(self, behaviours: tuple[Behaviour, ...]) -> None:
        """One client; never raises for what the server does."""
        while not self.stopping:
            question = self._random.choice(self._questions)
            behaviour = self._random.choice(behaviours)
            self.records.append(await self._ask(question, behaviour))

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, question: Question, behaviour: Behaviour) -> Record:
        began_s = time.monotonic()
        pieces = Pieces()
        outcome: Outcome
        detail = ""
        try:
            async with asyncio.timeout(self._hang_s):
                outcome, detail = await self._behave(question, behaviour, pieces)
        except (TimeoutError, httpx.TimeoutException):
            outcome = "hung"
        except httpx.HTTPStatusError as error:
            outcome, detail = "error", f"{error.response.status_code} {error.response.text[:200]}"
        except httpx.TransportError as error:
            outcome, detail = "connection", f"{type(error).__name__}: {error} ({error.__cause__!r})"
        return Record(question.name, behaviour, outcome, began_s, time.monotonic(), detail, pieces.longest_pause_s)

    async def _behave(self, question: Question, behaviour: Behaviour, pieces: Pieces) -> tuple[Outcome, str]:
        expected = self.expected[question.name]
        if behaviour == "whole":
            pieces.add((await self._whole(question, {}))["choices"])
            return ("whole", "") if pieces.answer == expected else ("wrong", f"{pieces.answer} != {expected}")
        request_id = f"chaos-{next(self._ids)}"
        chunks, leave_after = 0, self._random.randrange(1, 40)
        async for data in self.stream(question, {"request_id": request_id} if behaviour == "abort" else {}, pieces):
            pieces.take(data)
            chunks += 1
            if behaviour == "slow":
                await asyncio.sleep(0.02)
            if behaviour == "leave" and chunks >= leave_after:
                break
            if behaviour == "abort" and chunks == leave_after:
                await self._http.post("/abort_request", json={"rid": request_id})
        if pieces.answer == expected and pieces.done:
            return "whole", ""
        if any(not expected[index][0].startswith(text) for index, text in pieces.texts.items()):
            return "wrong", f"{pieces.answer} is not the beginning of {expected}"
        if behaviour in ("leave", "abort"):
            return "left", pieces.error
        if pieces.error:
            return "error", pieces.error
        return ("wrong", "it ended early") if pieces.done else ("connection", "the stream broke off")

    async def _whole(self, question: Question, fields: dict[str, Any]) -> dict[str, Any]:
        response = await self._http.post(question.path, json=question.body | fields)
        response.raise_for_status()
        body: dict[str, Any] = response.json()
        return body

    async def stream(
        self, question: Question, fields: dict[str, Any], pieces: Pieces | None = None
    ) -> AsyncIterator[str]:
        """The data of each event; a leaving client's connection is closed."""
        body = question.body | fields | {"stream": True}
        async with self._http.stream("POST", question.path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                response.raise_for_status()
            last_s = time.monotonic()
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                now_s = time.monotonic()
                if pieces is not None:
                    pieces.longest_pause_s = max(pieces.longest_pause_s, now_s - last_s)
                last_s = now_s
                yield line.removeprefix("data: ")
