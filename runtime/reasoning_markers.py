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

    __slots__ = ("_close", "_lengths", "_open", "_reopens", "_tail", "_token_bytes", "inside")

    def __init__(self, span: ReasoningSpan, token_bytes: TokenBytes | None = None, reopens: bool = True) -> None:
        reads_text = token_bytes is not None and span.open_text and span.close_text
        self._token_bytes: TokenBytes = token_bytes if token_bytes is not None and reads_text else _id_bytes
        self._open = span.open_text.encode() if reads_text else b"".join(map(_id_bytes, span.open_ids))
        self._close = span.close_text.encode() if reads_text else b"".join(map(_id_bytes, span.close_ids))
        self._reopens = reopens
        self._tail = b""  # of the text so far, too short for a whole marker
        self._lengths: deque[int] = deque()  # of the tokens that have a part in it
        self.inside = span.prompt_opened

    def feed(self, token: int) -> int:
        """How many tokens, this one the last, hold the marker that it completes; 0 if it completes none."""
        marker = self._close if self.inside else self._open
        if not marker or not (self.inside or self._reopens):
            return 0
        piece = self._token_bytes(token)
        text = self._tail + piece
        self._lengths.append(len(piece))
        at = text.find(marker)
        if at < 0:
            self._tail = text[1 - len(marker) :] if len(marker) > 1 else b""
            missing = sum(self._lengths) - len(self._tail)
            while self._lengths and missing >= self._lengths[0]:
                missing -= self._lengths.popleft()
            return 0
        reached, tokens = len(text), 0
        while reached > at:
            reached -= self._lengths[-1 - tokens]
            tokens += 1
        self.inside = not self.inside
        self._tail = b""
        self._lengths.clear()
        return tokens

    def missing_ends(self) -> list[bytes]:
        """What may come next to complete the marker: the whole of it, and the rest of it where it seems to have begun."""
        marker = self._close if self.inside else self._open
        return [marker[begun:] for begun in range(len(marker)) if self._tail.endswith(marker[:begun])]


def _id_bytes(token: int) -> bytes:
    """The id as bytes that can be found at no other place than its own."""
    return b",%d;" % token
