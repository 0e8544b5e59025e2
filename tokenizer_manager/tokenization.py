"""The model's tokenizer, with what prompts need beside plain encoding."""

from collections.abc import Sequence

from tokenizers import Tokenizer


class TextTokenizer:
    """Text to ids and back. Thread-safe: nothing of the wrapped tokenizer is changed after construction."""

    def __init__(self, tokenizer: Tokenizer, bos_token_id: int | None) -> None:
        # A tokenizer.json may carry the truncation and padding of its training run.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.raw = tokenizer
        self.bos_token_id = bos_token_id
        self.added: dict[str, int] = {}
        self.special: frozenset[str] = frozenset()
        special = set()
        for token_id, token in tokenizer.get_added_tokens_decoder().items():
            self.added[token.content] = token_id
            if token.special:
                special.add(token.content)
        self.special = frozenset(special)
        # Unigram models keep an id instead of a token, and call it <unk> in practice.
        self.unknown: str = getattr(tokenizer.model, "unk_token", None) or "<unk>"

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of the text, in which added tokens are recognised. A begin token is never doubled."""
        ids: list[int] = self.raw.encode(text, add_special_tokens=add_special_tokens).ids
        return self.single_bos(ids) if add_special_tokens else ids

    def single_bos(self, ids: list[int]) -> list[int]:
        """The ids without the begin token that the tokenizer put before the text's own."""
        if len(ids) > 1 and ids[0] == ids[1] == self.bos_token_id:
            return ids[1:]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        text: str = self.raw.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's own spelling of each id ("" for an id that has none)."""
        return [self.raw.id_to_token(token_id) or "" for token_id in ids]

    def special_id(self, text: str) -> int | None:
        """The id of a text that is exactly one special token."""
        return self.added.get(text) if text in self.special else None
