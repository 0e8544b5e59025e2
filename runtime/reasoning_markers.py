"""Whether output is reasoning, followed token by token: one reading, for every process that has to know.

Markers are looked for in the text that the tokens stand for. Ids would do for markers that are one token each; a marker
of several tokens may share its first and last with what is around it (`.</`, `think`, `>\\n\\n`), and a model may spell a
marker out in letters. The front end, which splits the answer, reads the text too.
"""

from collections import deque
from collections.abc import Callable

from protocol.sampling import ReasoningSpan

TokenBytes = Callable[[int], bytes]


class ReasoningFollower:
    """`inside` is true while the next token is reasoning.

    Without `token_bytes`, or for a span without texts, ids are compared. With `reopens` False there is no reasoning but
    what begins the output.
    """

    __slots__ = ("_closes", "_lengths", "_opens", "_reopens", "_tail", "_token_bytes", "_tools", "inside")

    def __init__(self, span: ReasoningSpan, token_bytes: TokenBytes | None = None, reopens: bool = True) -> None:
        if token_bytes is not None and span.open_texts and span.close_texts:
            self._token_bytes = token_bytes
            self._opens, self._closes = _encoded(span.open_texts), _encoded(span.close_texts)
            self._tools = _encoded(span.tool_texts)
        else:
            self._token_bytes = _id_bytes
            self._opens = tuple(filter(None, (b"".join(map(_id_bytes, span.open_ids)),)))
            self._closes = tuple(filter(None, (b"".join(map(_id_bytes, span.close_ids)),)))
            self._tools = ()
        self._reopens = reopens
        self._tail = b""  # of the text so far, too short for a whole marker
        self._lengths: deque[int] = deque()  # of the tokens that have a part in it
        self.inside = span.prompt_opened

    def feed(self, token: int) -> int:
        """How many tokens, this one the last, hold the marker that it completes; 0 if it completes none."""
        markers = (*self._closes, *self._tools) if self.inside else self._opens if self._reopens else ()
        if not markers:
            return 0
        piece = self._token_bytes(token)
        text = self._tail + piece
        self._lengths.append(len(piece))
        found = [at for marker in markers if (at := text.find(marker)) >= 0]
        if not found:
            self._tail = text[max(0, len(text) + 1 - max(map(len, markers))) :]
            missing = sum(self._lengths) - len(self._tail)
            while self._lengths and missing >= self._lengths[0]:
                missing -= self._lengths.popleft()
            return 0
        reached, tokens = len(text), 0
        while reached > min(found):
            reached -= self._lengths[-1 - tokens]
            tokens += 1
        self.inside = not self.inside
        self._tail = b""
        self._lengths.clear()
        return tokens

    def missing_ends(self) -> list[bytes]:
        """What may come next to close the reasoning: each marker whole, and the rest of it where it seems to have begun."""
        return self._missing(self._closes)

    def missing_tools(self) -> list[bytes]:
        """Likewise for the markers of tool calls that would end it."""
        return self._missing(self._tools)

    def _missing(self, markers: tuple[bytes, ...]) -> list[bytes]:
        return [
            marker[begun:] for marker in markers for begun in range(len(marker)) if self._tail.endswith(marker[:begun])
        ]


def _encoded(texts: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts)


def _id_bytes(token: int) -> bytes:
    """The id as bytes that can be found at no other place than its own."""
    return b",%d;" % token
