"""Drives a running OpenAI-compatible server and prints one JSON line of figures.

    python -m benchmarks.serve_load --base-url http://127.0.0.1:30000 --model smollm2 \\
        --concurrency 8 --requests 32 --input-len 128 --output-len 128 [--pid SERVER_PID] [--tokenizer tokenizer.json]

Workloads: plain (every prompt is distinct); shared prefixes (--prefix-len P --prefix-groups G: request i begins with the
P tokens of group i % G); waves (--waves W rounds with a barrier between them: prefixes stay, own tokens change); turns
(--turns T: each request is a conversation, every turn adding --input-len tokens to its whole history).

Definitions: TTFT, request sent to first chunk that carries a choice (role-only deltas skipped); ITL, gap between such
chunks; TPOT, (last - first chunk) / (completion tokens - 1). Token counts are those of the usage chunk. With --pid, CPU
seconds and memory (PSS) of that process and its descendants are added, and `other_cpu_s`, the CPU time of everybody else:
a run with much of it was disturbed.
"""

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from tokenizers import Tokenizer

from benchmarks.process_tree import TreeUsage, tree_usage

# fmt: off
WORDS = [
    "river", "stone", "cloud", "paper", "garden", "window", "music", "letter", "market", "summer", "winter", "bridge",
    "forest", "island", "doctor", "teacher", "kitchen", "engine", "silver", "mountain", "village", "season", "number",
    "country", "morning", "evening", "story", "picture", "question", "answer",
]
# fmt: on


class PromptMaker:
    """Reproducible texts of about n tokens; of exactly n where a tokenizer is given."""

    def __init__(self, tokenizer_file: str | None) -> None:
        self._tokenizer = Tokenizer.from_file(tokenizer_file) if tokenizer_file else None

    def text(self, tokens: int, seed: str) -> str:
        chooser = random.Random(seed)
        text = " ".join(chooser.choice(WORDS) for _ in range(tokens))
        if self._tokenizer is None or not tokens:
            return text
        cut: str = self._tokenizer.decode(self._tokenizer.encode(text, add_special_tokens=False).ids[:tokens])
        return cut


@dataclass
class Answer:
    """What came back for one request. Times are `perf_counter` seconds."""

    wave: int
    turn: int
    sent: float
    first: float | None = None
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    error: str | None = None

    def take(self, payload: bytes, now: float) -> None:
        """One event of the stream."""
        if payload == b"[DONE]":
            return
        event = json.loads(payload)
        if "error" in event:
            self.error = json.dumps(event["error"])[:200]
            return
        usage = event.get("usage")
        if usage:
            self.prompt_tokens = usage["prompt_tokens"]
            self.output_tokens = usage["completion_tokens"]
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        for choice in event.get("choices") or ():
            text = _text_of(choice)
            if text is None:
                continue
            if self.first is None:
                self.first = now
            else:
                self.gaps.append(now - self.last)
            self.last = now
            self.text += text


def _text_of(choice: dict[str, Any]) -> str | None:
    """The chunk's text; None for a role-only opening or an empty closing delta."""
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or ""
    text = delta.get("content") or delta.get("reasoning_content") or ""
    calls = delta.get("tool_calls")
    if not text and not calls and (delta.get("role") or choice.get("finish_reason")):
        return None
    return str(text)


class Driver:
    """Sends the workload that the arguments describe."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._maker = PromptMaker(arguments.tokenizer)
        path = "chat/completions" if arguments.endpoint == "chat" else "completions"
        self._url = f"{arguments.base_url.rstrip('/')}/v1/{path}"
        self._prefixes = [
            self._maker.text(arguments.prefix_len, f"prefix/{arguments.seed}/{group}")
            for group in range(max(1, arguments.prefix_groups))
        ]
        self._more = json.loads(arguments.extra) if arguments.extra else {}

    async def run(self) -> tuple[list[Answer], float, Sequence[TreeUsage], float]:
        """Answers, wall seconds, the server's usage before and after, and the client's own CPU seconds."""
        arguments = self._arguments
        headers = {"Authorization": f"Bearer {arguments.api_key}"} if arguments.api_key else {}
        # One connection per request: some servers close idle ones after a few, which would count as errors.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=arguments.timeout_s)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
            if arguments.warmup:
                await self._wave(session, -1, arguments.warmup)
            before, own = tree_usage(arguments.pid), _own_cpu_s()
            began = time.perf_counter()
            answers: list[Answer] = []
            for wave in range(arguments.waves):
                answers += await self._wave(session, wave, arguments.requests)
            wall = time.perf_counter() - began
            return answers, wall, (before, tree_usage(arguments.pid)), _own_cpu_s() - own

    async def _wave(self, session: aiohttp.ClientSession, wave: int, count: int) -> list[Answer]:
        answers: list[Answer] = []
        left = iter(range(count))
        await asyncio.gather(*(self._worker(session, wave, left, answers) for _ in range(self._arguments.concurrency)))
        return answers

    async def _worker(
        self, session: aiohttp.ClientSession, wave: int, left: Iterator[int], answers: list[Answer]
    ) -> None:
        for index in left:
            await self._conversation(session, wave, index, answers)

    async def _conversation(self, session: aiohttp.ClientSession, wave: int, index: int, answers: list[Answer]) -> None:
        arguments = self._arguments
        messages: list[dict[str, str]] = []
        for turn in range(arguments.turns):
            own = self._maker.text(arguments.input_len, f"{arguments.seed}/{wave}/{index}/{turn}")
            if turn == 0 and arguments.prefix_len:
                own = f"{self._prefixes[index % len(self._prefixes)]} {own}"
            messages.append({"role": "user", "content": own})
            answer = Answer(wave, turn, time.perf_counter())
            answers.append(answer)
            await self._stream(session, self._body(messages), answer)
            if answer.error is not None:
                return
            messages.append({"role": "assistant", "content": answer.text})

    def _body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        arguments = self._arguments
        body: dict[str, Any] = {
            "model": arguments.model,
            "max_tokens": arguments.output_len,
            "temperature": arguments.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if not arguments.heed_eos:
            body["ignore_eos"] = True
        body |= self._more
        if arguments.endpoint == "chat":
            return body | {"messages": messages}
        return body | {"prompt": "\n".join(message["content"] for message in messages)}

    async def _stream(self, session: aiohttp.ClientSession, body: dict[str, Any], answer: Answer) -> None:
        try:
            async with session.post(self._url, json=body) as response:
                if response.status != 200:
                    answer.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                    return
                rest = b""
                async for data in response.content.iter_any():
                    now = time.perf_counter()
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        if line.startswith(b"data:"):
                            answer.take(line[5:].strip(), now)
        except (aiohttp.ClientError, TimeoutError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        if answer.error is None and answer.first is None:
            answer.error = "the stream ended without a token"


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def percentile_ms(seconds: Sequence[float], share: float) -> float | None:
    """Nearest rank, in milliseconds; None of nothing."""
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) if ordered else None


def summarise(arguments: argparse.Namespace, answers: Sequence[Answer], wall_s: float) -> dict[str, Any]:
    """The figures of a run; failed requests are counted and take part in nothing else."""
    whole = [answer for answer in answers if answer.error is None and answer.first is not None]
    first = [(answer.first or 0.0) - answer.sent for answer in whole]
    times = {
        "ttft": first,
        "itl": [gap for answer in whole for gap in answer.gaps],
        "tpot": [
            (answer.last - (answer.first or 0.0)) / (answer.output_tokens - 1)
            for answer in whole
            if answer.output_tokens > 1
        ],
        "e2e": [answer.last - answer.sent for answer in whole],
    }
    output_tokens = sum(answer.output_tokens for answer in whole)
    prompt_tokens = sum(answer.prompt_tokens for answer in whole)
    report: dict[str, Any] = {
        "label": arguments.label,
        "concurrency": arguments.concurrency,
        "ok": len(whole),
        "errors": len(answers) - len(whole),
        "wall_s": round(wall_s, 3),
        "out_tok_s": round(output_tokens / wall_s, 2),
        "in_tok_s": round(prompt_tokens / wall_s, 2),
        "req_s": round(len(whole) / wall_s, 3),
        "in_tok": prompt_tokens,
        "cached_tok": sum(answer.cached_tokens for answer in whole),
        "out_tok": output_tokens,
    }
    for name, values in times.items():
        report[f"{name}_p50_ms"], report[f"{name}_p99_ms"] = percentile_ms(values, 0.5), percentile_ms(values, 0.99)
    if arguments.waves > 1:
        waves = [[t for t, a in zip(first, whole, strict=True) if a.wave == w] for w in range(arguments.waves)]
        report["ttft_p50_ms_by_wave"] = [percentile_ms(values, 0.5) for values in waves]
    if arguments.turns > 1:
        turns = [[t for t, a in zip(first, whole, strict=True) if a.turn == n] for n in range(arguments.turns)]
        report["ttft_p50_ms_by_turn"] = [percentile_ms(values, 0.5) for values in turns]
    failed = next((answer.error for answer in answers if answer.error is not None), None)
    if failed is not None:
        report["first_error"] = failed
    return report


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--requests", type=int, default=8, help="requests (conversations) per wave")
    parser.add_argument("--input-len", type=int, default=128, help="own tokens per request or turn")
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--tokenizer", help="tokenizer.json, for exact input lengths")
    parser.add_argument("--prefix-len", type=int, default=0)
    parser.add_argument("--prefix-groups", type=int, default=1)
    parser.add_argument("--waves", type=int, default=1)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=0, help="requests that are sent first and not counted")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--heed-eos", action="store_true", help="let answers end before --output-len")
    parser.add_argument("--extra", help="JSON object that is merged into every body")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--timeout-s", type=float, default=600.0)
    parser.add_argument("--api-key")
    parser.add_argument("--pid", type=int, help="the server's process id")
    parser.add_argument("--label", default="")
    return parser.parse_args(argv)


def main() -> int:
    arguments = parse()
    answers, wall_s, (before, after), own_cpu_s = asyncio.run(Driver(arguments).run())
    report = summarise(arguments, answers, wall_s)
    report["client_cpu_s"] = round(own_cpu_s, 2)
    if arguments.pid is not None and Path(f"/proc/{arguments.pid}").exists():
        server = after.cpu_s - before.cpu_s
        report["server_cpu_s"] = round(server, 2)
        report["other_cpu_s"] = round(after.machine_cpu_s - before.machine_cpu_s - server - own_cpu_s, 2)
        report["server_pss_mb"] = after.pss_bytes >> 20
        report["server_processes"] = after.processes
    print(json.dumps(report))
    return 1 if report["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
