"""Text that a grammar forces, as tokens: only those that no continuation could have made different.

Models see text in the tokens that their tokenizer makes of it. A forced text ends somewhere; what is drawn next might
have been joined to its end in one longer token. So the tokens before the first place from which a longer token could
reach beyond the end are kept, and the rest is drawn under the mask as usual.
"""

from bisect import bisect_right
from collections import OrderedDict

from tokenizers import Tokenizer

from runtime.vocabulary import Vocabulary

_REMEMBERED = 4096
_LONGEST_TEXT = 16_384


class ForcedText:
    """Shared by all states; remembers what it has worked out."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer = tokenizer
        self._token_bytes = vocabulary.token_bytes
        tokens = (vocabulary.token_bytes(id) for id in range(vocabulary.size) if not vocabulary.is_special(id))
        self._sorted = sorted({token for token in tokens if token})
        self._longest = max(map(len, self._sorted), default=0)
        self._known: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def ids(self, text: str) -> tuple[int, ...]:
        """The tokens that are certain; () if there are none."""
        if len(text) < 2 or len(text) > _LONGEST_TEXT:
            return ()
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._work_out(text)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return known

    def _work_out(self, text: str) -> tuple[int, ...]:
        data = text.encode()
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if b"".join(map(self._token_bytes, ids)) != data:
            return ()  # the tokenizer writes a beginning of text in another way (a space before it)
        certain = self._certain_bytes(data)
        end = count = 0
        for token_id in ids:
            end += len(self._token_bytes(token_id))
            if end > certain:
                break
            count += 1
        return tuple(ids[:count])

    def _certain_bytes(self, data: bytes) -> int:
        """Where the first token could begin that reaches beyond the end."""
        for start in range(max(0, len(data) - self._longest), len(data)):
            rest = data[start:]
            place = bisect_right(self._sorted, rest)
            if place < len(self._sorted) and self._sorted[place].startswith(rest):
                return start
        return len(data)
