"""Text of a user is text: a control token spelled in a message never becomes that token.

Before rendering, a mark (a Unicode noncharacter that occurs nowhere in the request) is put into every control token
that the user's strings spell. After rendering, what is spelled without a mark was written by the template. If the marks
matter, the template's tokens are respelled with a secret that a twin of the tokenizer knows, the marks are dropped, and
the twin encodes the whole text at once: so plain text keeps its context (merges, prefix spaces) and ids are otherwise
those of an ordinary encoding. Encoding piece by piece was rejected: it changes ids at every seam.
"""

import json
import re
import secrets
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from protocol.errors import field_error
from tokenizer_manager.tokenization import TextTokenizer

MARK_CANDIDATES = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))


@dataclass(frozen=True)
class Marks:
    """Two characters that no string of the request holds: inside forged tokens, and at the end of a message to continue."""

    inside: str
    end: str


def choose_marks(values: Iterable[Any]) -> Marks:
    """Marks for a request made of these values (strings, lists, dicts); RequestError if it holds every noncharacter."""
    used: set[str] = set()
    candidates = frozenset(MARK_CANDIDATES)
    for text in strings_of(values):
        if not text.isascii():
            used |= candidates.intersection(text)
    free = [mark for mark in MARK_CANDIDATES if mark not in used]
    if len(free) < 2:
        raise field_error("messages", "hold nearly every Unicode noncharacter")
    return Marks(free[0], free[1])


def strings_of(value: Any) -> Iterator[str]:
    """Every string in nested data, keys included, in no order. Any depth: whoever recurses later will refuse it."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            todo.extend(item)
            todo.extend(item.values())
        elif isinstance(item, list | tuple):
            todo.extend(item)


def tokens_pattern(tokens: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds any of the tokens, the longest at each place, in time that does not grow with their number."""
    root: dict[str, Any] = {}
    for token in tokens:
        node = root
        for character in token:
            node = node.setdefault(character, {})
        node[""] = {}
    return re.compile(_branch(root) if root else "(?!)")


def _branch(node: dict[str, Any]) -> str:
    ends = "" in node
    options = []
    for character, child in node.items():
        if character:
            text = re.escape(character)
            while len(child) == 1 and "" not in child:
                ((following, child),) = child.items()
                text += re.escape(following)
            options.append(text + (_branch(child) if set(child) != {""} else ""))
    if not options:
        return ""
    return f"(?:{'|'.join(options)}){'?' if ends else ''}"


class ControlTokenMarker:
    """Marks the control tokens that strings of a request spell. One per template: its literals name some of them."""

    def __init__(self, tokens: Iterable[str]) -> None:
        tokens = [token for token in tokens if token]
        self._pattern = tokens_pattern(tokens)
        self._prefixes = frozenset(token[:length] for token in tokens for length in range(1, len(token)))
        self._longest = max((len(token) for token in tokens), default=0)

    def mark(self, value: Any, mark: str) -> Any:
        """The same data with a mark inside each control token, in keys as well."""
        if isinstance(value, str):
            return self._pattern.sub(lambda found: _split(found.group(), mark), value)
        if isinstance(value, dict):
            return {self.mark(key, mark): self.mark(item, mark) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item, mark) for item in value]
        return value

    def mark_text(self, text: str, mark: str) -> str:
        """As `mark`, for text that may be joined to what follows: a token can't be completed by the next string either."""
        text = self._pattern.sub(lambda found: _split(found.group(), mark), text)
        body = text.rstrip()
        for length in range(1, min(self._longest, len(body) + 1)):
            if body[-length:] in self._prefixes:
                return body + mark + text[len(body) :]
        return text


def _split(token: str, mark: str) -> str:
    # A one-character token can't be broken from within; a mark behind it tells it from the template's own.
    return token[:1] + mark + token[1:]


class NeedsThread(Exception):
    """The work would hold up an event loop: do it again, patiently, in a thread."""


class MarkedEncoder:
    """Encodes rendered text that may hold marks. The twin tokenizer is made on first need: few texts forge anything."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._names = [name for name in tokenizer.added if name.strip()]
        self._pattern = tokens_pattern(self._names)
        # The unknown token stands for characters that the vocabulary lacks: plain text makes it all the time.
        special = tokenizer.special - {tokenizer.unknown}
        self._special_pattern = tokens_pattern(special)
        self._special_ids = frozenset(tokenizer.added[name] for name in special)
        self._twin: SpelledTokenizer | None = None
        self._making = threading.Lock()

    def encode(
        self,
        rendered: str,
        mark: str,
        add_special_tokens: bool = False,
        *,
        guarded: bool = True,
        patient: bool = True,
    ) -> list[int]:
        """Ids of the text. With `guarded`, special tokens are those that the text spells without a mark, and no others.

        NeedsThread if not `patient` and the twin has yet to be made.
        """
        plain = rendered.replace(mark, "")
        if not guarded:
            return self._tokenizer.encode(plain, add_special_tokens)
        if len(plain) == len(rendered) or self._marks_do_not_matter(rendered, mark, plain):
            ids = self._tokenizer.encode(plain, add_special_tokens)
            if not self._has_surplus(ids, plain, add_special_tokens):
                return ids
        if self._twin is None and not patient:
            raise NeedsThread
        twin = self._spelled()
        ids = twin.encode(self._respell(rendered, mark, twin), add_special_tokens)
        return self._tokenizer.single_bos(ids) if add_special_tokens else ids

    def _marks_do_not_matter(self, rendered: str, mark: str, plain: str) -> bool:
        """Whether the same tokens stand at the same places without the marks: a text may end in "<" innocently."""
        own, marks, seen = [], 0, 0
        for found in self._pattern.finditer(rendered):
            marks += rendered.count(mark, seen, found.start())
            seen = found.start()
            if not (len(found.group()) == 1 and rendered.startswith(mark, found.end())):
                own.append((found.start() - marks, found.group()))
        return own == [(found.start(), found.group()) for found in self._pattern.finditer(plain)]

    def _has_surplus(self, ids: list[int], plain: str, add_special_tokens: bool) -> bool:
        """Whether there are more special tokens than are spelled: a normalizer may have made one (full-width brackets)."""
        found = sum(1 for token_id in ids if token_id in self._special_ids)
        if add_special_tokens:
            found -= self._tokenizer.raw.num_special_tokens_to_add(False)
        return found > 0 and found > len(self._special_pattern.findall(plain))

    def _respell(self, rendered: str, mark: str, twin: "SpelledTokenizer") -> str:
        """The text with the template's tokens in the twin's spelling, and without marks.

        A one-character token that the user wrote has its mark right behind it."""

        def spelling(found: re.Match[str]) -> str:
            token = found.group()
            if len(token) == 1 and rendered.startswith(mark, found.end()):
                return token
            return twin.spellings[token]

        return self._pattern.sub(spelling, rendered).replace(mark, "")

    def _spelled(self) -> "SpelledTokenizer":
        with self._making:
            if self._twin is None:
                self._twin = SpelledTokenizer(self._tokenizer, self._names)
            return self._twin


class SpelledTokenizer:
    """A twin of a tokenizer in which the added tokens are spelled so that nobody can write them."""

    def __init__(self, tokenizer: TextTokenizer, names: list[str]) -> None:
        secret = secrets.token_hex(8)
        data = json.loads(tokenizer.raw.to_str())
        merged = _merged_parts(data["model"])
        names = [name for name in names if name not in merged]
        self.spellings = {name: name for name in tokenizer.added}
        self.spellings |= {name: f"\ue000{secret}{index}\ue001" for index, name in enumerate(names)}
        for token in data["added_tokens"]:
            token["content"] = self.spellings[token["content"]]
        _respell_model(data["model"], self.spellings)
        self._raw = Tokenizer.from_str(json.dumps(data))
        # Ids outside the model's own vocabulary are dealt anew when a tokenizer is loaded.
        self._ids = {self._raw.token_to_id(self.spellings[name]): number for name, number in tokenizer.added.items()}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids = self._ids
        encoded = self._raw.encode(text, add_special_tokens=False).ids
        result = [ids.get(number, number) for number in encoded]
        if not add_special_tokens:
            return result
        # The post-processor inserts ids by the original numbering; what it adds is found on the empty text.
        before, after = self._frame()
        return before + result + after

    def _frame(self) -> tuple[list[int], list[int]]:
        """What the post-processor puts before and after a text."""
        probe = self._raw.encode("a", add_special_tokens=True)
        flags = probe.special_tokens_mask
        first = next((index for index, flag in enumerate(flags) if not flag), len(flags))
        last = len(flags) - next((index for index, flag in enumerate(reversed(flags)) if not flag), 0)
        return probe.ids[:first], probe.ids[last:]


def _merged_parts(model: dict[str, Any]) -> frozenset[str]:
    """Tokens that merges are made of: their vocabulary entries can't be renamed (whitespace runs, mostly)."""
    parts: set[str] = set()
    for merge in model.get("merges") or ():
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        parts.update((left, right, left + right))
    return frozenset(parts)


def _respell_model(model: dict[str, Any], spellings: dict[str, str]) -> None:
    """Renames the tokens in the model's own vocabulary, or plain text could still reach them there."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {spellings.get(piece, piece): number for piece, number in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[spellings.get(piece, piece), score] for piece, score in vocabulary]
    unknown = model.get("unk_token")
    if isinstance(unknown, str):
        model["unk_token"] = spellings.get(unknown, unknown)
