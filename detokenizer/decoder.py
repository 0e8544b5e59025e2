"""Incremental decoders. Fed one id after the other they return, piece by piece, exactly the text of the whole.

`push` returns the text that became certain with this id; `open` says that more of the last ids' text is still to come
(a character without its last bytes). `finish` ends the text: what is still open then is broken, and shown as U+FFFD.
`prime` sets a decoder behind a prompt: what the prompt's last ids show belongs to the prompt, a character that they
began belongs to the output that completes it.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

from detokenizer.pieces import Pieces

REPLACEMENT = "\ufffd"


class TextDecoder(Protocol):
    open: bool

    def prime(self, ids: Sequence[int]) -> None: ...

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


def make_decoder(pieces: Pieces, hidden_ids: frozenset[int], spaces_between_special_tokens: bool) -> TextDecoder:
    """The decoder for one choice. Ids in `hidden_ids` add nothing; they don't even interrupt a character."""
    if pieces.kind == "bytes":
        return ByteDecoder(pieces, hidden_ids)
    if pieces.kind == "fallback":
        return FallbackDecoder(pieces, hidden_ids)
    return WindowDecoder(pieces, hidden_ids, spaces_between_special_tokens)


class ByteDecoder:
    """Byte-level vocabularies: tokens are bytes, and the text is their UTF-8 with broken parts replaced."""

    def __init__(self, pieces: Pieces, hidden_ids: frozenset[int]) -> None:
        self.open = False
        self._bytes = pieces.byte_pieces
        self._texts = pieces.byte_texts
        self._size = len(self._bytes)
        self._hidden = hidden_ids
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._prompt_owes = False  # the pending bytes began in the prompt

    def prime(self, ids: Sequence[int]) -> None:
        for token_id in ids:
            self.push(token_id)
        self._prompt_owes = self.open

    def push(self, token_id: int) -> str:
        if token_id in self._hidden or not 0 <= token_id < self._size:
            return ""
        if not self.open:
            whole = self._texts[token_id]
            if whole is not None:
                return whole
        text = self._utf8.decode(self._bytes[token_id])
        self.open = self._utf8.getstate()[0] != b""
        return self._without_prompt(text) if self._prompt_owes else text

    def finish(self) -> str:
        self.open = False
        text = self._utf8.decode(b"", final=True)
        return self._without_prompt(text) if self._prompt_owes else text

    def _without_prompt(self, text: str) -> str:
        """Drops the replacement of a character that the prompt began and nobody completed: the prompt shows it."""
        if not text:
            return text
        self._prompt_owes = False
        return text[1:] if text[0] == REPLACEMENT else text


class FallbackDecoder:
    """SentencePiece with byte fallback: a run of byte tokens is its UTF-8 if all of it is valid, else one U+FFFD a byte.

    So the text of a run is open until the run ends, or until it is known to be broken.
    """

    def __init__(self, pieces: Pieces, hidden_ids: frozenset[int]) -> None:
        self.open = False
        self._pieces = pieces.text_pieces
        self._size = len(self._pieces)
        self._hidden = hidden_ids
        self._spaces_to_strip = pieces.leading_spaces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("strict")
        self._run_bytes = 0
        self._run_text: list[str] = []
        self._run_is_broken = False
        self._prompt_bytes = 0  # of the run
        self._prompt_characters = 0

    def prime(self, ids: Sequence[int]) -> None:
        for token_id in ids:
            self.push(token_id)
            if token_id not in self._hidden:
                self._spaces_to_strip = 0  # the output does not begin the text
        self._prompt_bytes = self._run_bytes
        self._prompt_characters = sum(map(len, self._run_text))

    def push(self, token_id: int) -> str:
        if token_id in self._hidden or not 0 <= token_id < self._size:
            return ""
        piece = self._pieces[token_id]
        if isinstance(piece, int):
            return self._push_byte(piece)
        if self._run_bytes or self._run_is_broken:
            piece = self._end_run() + piece
        return self._stripped(piece) if self._spaces_to_strip else piece

    def finish(self) -> str:
        text = self._end_run()
        return self._stripped(text) if self._spaces_to_strip else text

    def _push_byte(self, byte: int) -> str:
        if self._run_is_broken:
            return REPLACEMENT
        self._run_bytes += 1
        try:
            self._run_text.append(self._utf8.decode(bytes((byte,))))
        except UnicodeDecodeError:
            text = self._broken_run()
            self._run_is_broken = True
            return text
        self.open = True
        return ""

    def _broken_run(self) -> str:
        self._spaces_to_strip = 0
        text = REPLACEMENT * (self._run_bytes - self._prompt_bytes)
        self._forget_run()
        return text

    def _end_run(self) -> str:
        if self._utf8.getstate()[0]:
            return self._broken_run()
        text = "".join(self._run_text)[self._prompt_characters :]
        self._forget_run()
        return text

    def _forget_run(self) -> None:
        self.open = False
        self._utf8.reset()
        self._run_bytes = self._prompt_bytes = self._prompt_characters = 0
        self._run_text.clear()
        self._run_is_broken = False

    def _stripped(self, text: str) -> str:
        """Takes the spaces off the beginning of the whole text, over as many pieces as they fill."""
        while text and self._spaces_to_strip:
            if text[0] != " ":
                self._spaces_to_strip = 0
                break
            text = text[1:]
            self._spaces_to_strip -= 1
        return text


class WindowDecoder:
    """Any other decoder: the tokenizer decodes a window of the last visible ids with and without the new one.

    The window keeps some ids whose text is out already, because decoders look back (a first token loses its space, a
    repeated one may vanish). Ids whose text ends in U+FFFD are held; more than `_HELD` of them can't be one character.
    """

    _CONTEXT = 8
    _HELD = 4

    def __init__(self, pieces: Pieces, hidden_ids: frozenset[int], spaces_between_special_tokens: bool) -> None:
        self.open = False
        self._pieces = pieces
        self._hidden = hidden_ids
        self._join_special = not spaces_between_special_tokens
        self._window: list[int] = []
        self._sent_ids = 0  # of the window
        self._sent = ""  # the text that the window's first `_sent_ids` ids have given
        self._after_special = False

    def prime(self, ids: Sequence[int]) -> None:
        self._window = [token_id for token_id in ids if self._is_visible(token_id)]
        self._sent_ids = len(self._window)
        self._sent = self._decoded(self._sent_ids)
        self._shorten()

    def push(self, token_id: int) -> str:
        if not self._is_visible(token_id):
            return ""
        self._window.append(token_id)
        if self._pieces.is_byte(token_id):
            self.open = True
            return ""
        text = self._decoded(len(self._window))
        count = len(self._window)
        if text.endswith(REPLACEMENT) and not self._pieces.has_byte_runs:
            if count - self._sent_ids <= self._HELD:
                self.open = True
                return ""
            count -= self._HELD - 1
            text = self._decoded(count)
        self.open = count < len(self._window)
        return self._take(text, count)

    def finish(self) -> str:
        self.open = False
        return self._take(self._decoded(len(self._window)), len(self._window))

    def _is_visible(self, token_id: int) -> bool:
        vocabulary = self._pieces.vocabulary
        return token_id not in self._hidden and 0 <= token_id < vocabulary.size and vocabulary.token(token_id) != ""

    def _decoded(self, count: int) -> str:
        text: str = self._pieces.tokenizer.decode(self._window[:count], skip_special_tokens=False)
        return text

    def _take(self, text: str, count: int) -> str:
        """What `text`, of the window's first `count` ids, says beyond what was sent."""
        delta = text[len(_common_prefix(self._sent, text)) :]
        if self._join_special:
            delta = self._joined(delta, self._window[self._sent_ids : count])
        self._sent, self._sent_ids = text, count
        self._shorten()
        return delta

    def _joined(self, delta: str, ids: list[int]) -> str:
        """Takes out the space that the decoder put between two special tokens."""
        special = [self._pieces.vocabulary.is_special(token_id) for token_id in ids]
        if self._after_special and special[:1] == [True]:
            delta = delta.removeprefix(" ")
        if special:
            self._after_special = special[-1]
        return delta

    def _shorten(self) -> None:
        """Drops old ids, in bulk so that each costs a constant, down to the context."""
        surplus = self._sent_ids - self._CONTEXT
        if surplus < self._CONTEXT:
            return
        del self._window[:surplus]
        self._sent_ids -= surplus
        self._sent = self._decoded(self._sent_ids)


def _common_prefix(sent: str, text: str) -> str:
    """`sent` itself as a rule; less where the last character sent was broken and has been completed since."""
    if text.startswith(sent):
        return sent
    shown = sent.rstrip(REPLACEMENT)
    if text.startswith(shown):
        return shown
    length = 0
    for ours, theirs in zip(sent, text, strict=False):
        if ours != theirs:
            break
        length += 1
    return text[:length]
