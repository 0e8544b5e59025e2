"""Logprobs in OpenAI's two shapes."""

import codecs
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from protocol.outputs import TokenLogprob, TopLogprob

# JSON has no infinity; the number that vLLM and OpenAI's own service write for "never".
NEVER = -9999.0


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else NEVER


def token_name(entry: TokenLogprob | TopLogprob, as_ids: bool) -> str:
    return f"token_id:{entry.id}" if as_ids else entry.token


def chat_logprobs(entries: list[TokenLogprob], as_ids: bool) -> list[dict[str, Any]]:
    """`choices[].logprobs.content` of a chat."""
    return [
        _described(entry, as_ids) | {"top_logprobs": [_described(top, as_ids) for top in entry.top]}
        for entry in entries
    ]


def _described(entry: TokenLogprob | TopLogprob, as_ids: bool) -> dict[str, Any]:
    return {"token": token_name(entry, as_ids), "logprob": finite(entry.logprob), "bytes": list(entry.bytes_)}


class Place:
    """A place in a text that grows by tokens, in characters. One that begins inside a character has the character's."""

    def __init__(self, characters: int = 0) -> None:
        self.characters = characters
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def pass_by(self, token: bytes) -> None:
        self.characters += len(self._decoder.decode(token))


@dataclass(frozen=True)
class FirstToken:
    """A prompt token without a logprob."""

    name: str
    bytes_: bytes


def completion_logprobs(
    entries: Iterable[TokenLogprob | None], place: Place, as_ids: bool, first: FirstToken = FirstToken("", b"")
) -> dict[str, Any]:
    """The four lists of a completion, whose first token is at `place`, which is moved behind them. None is the first token
    of a prompt.

    The alternatives of a token include the drawn one, as the older API has it.
    """
    lists: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for entry in entries:
        lists["text_offset"].append(place.characters)
        if entry is None:
            lists["tokens"].append(first.name)
            lists["token_logprobs"].append(None)
            lists["top_logprobs"].append(None)
            place.pass_by(first.bytes_)
            continue
        name = token_name(entry, as_ids)
        lists["tokens"].append(name)
        lists["token_logprobs"].append(finite(entry.logprob))
        alternatives = {token_name(top, as_ids): finite(top.logprob) for top in entry.top}
        alternatives.setdefault(name, finite(entry.logprob))
        lists["top_logprobs"].append(alternatives)
        place.pass_by(entry.bytes_)
    return dict(lists)


def prompt_logprobs(entries: list[TokenLogprob | None]) -> list[dict[str, Any] | None]:
    """The extension `prompt_logprobs`: per prompt token a map from id to its logprob, rank and text."""
    described: list[dict[str, Any] | None] = []
    for entry in entries:
        if entry is None:
            described.append(None)
            continue
        candidates: dict[str, Any] = {
            str(top.id): {"logprob": finite(top.logprob), "rank": rank, "decoded_token": top.token}
            for rank, top in enumerate(entry.top, 1)
        }
        own = {"logprob": finite(entry.logprob), "rank": entry.rank, "decoded_token": entry.token}
        described.append({str(entry.id): own} | candidates)
    return described
