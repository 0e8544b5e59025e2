"""Prompts with a suffix: two pieces of text between the marks that the model was trained with, its answer the middle."""

import json
from typing import Any

from tokenizers import Tokenizer

from protocol.errors import field_error
from protocol.requests import TextPrompt
from runtime.engine_config import InfillFormat
from tokenizer_manager.tokenization import TextTokenizer


class Infiller:
    """Writes such prompts in ids: each piece is encoded for itself, so that nothing merges across a mark."""

    def __init__(self, format: InfillFormat, tokenizer: TextTokenizer) -> None:
        self._format = format
        self._tokenizer = tokenizer
        self._bare = _without_prefix_space(tokenizer.raw)
        probe = tokenizer.raw.encode("a", add_special_tokens=True)
        own = (place for place, is_added in enumerate(probe.special_tokens_mask) if not is_added)
        self._head = probe.ids[: next(own, 0)]
        self._marks = frozenset((format.prefix, format.suffix, format.middle))

    def encode(self, prompt: TextPrompt) -> list[int]:
        """RequestError where one of the texts spells a mark: the model could not tell it from the real one."""
        before = self._tokenizer.encode(prompt.text, add_special_tokens=False)
        # The suffix goes on in the middle of a text: no blank belongs before it.
        after = self._bare.encode(prompt.suffix, add_special_tokens=False).ids
        for name, ids in ((prompt.field, before), ("suffix", after)):
            if not self._marks.isdisjoint(ids):
                raise field_error(name, f"spells a mark of fill-in-the-middle prompts ({' '.join(self._format.marks)})")
        pieces = [[self._format.prefix, *before], [self._format.suffix, *after]]
        if self._format.suffix_first:
            pieces.reverse()
        head = self._head if prompt.add_special_tokens else []
        end = [] if self._format.middle is None else [self._format.middle]
        return self._tokenizer.single_bos([*head, *pieces[0], *pieces[1], *end])


def _without_prefix_space(raw: Tokenizer) -> Tokenizer:
    """The tokenizer without the blank that SentencePiece models put before a text."""
    data = json.loads(raw.to_str())
    changed = [_drop_prefix_space(data, name) for name in ("normalizer", "pre_tokenizer")]
    return Tokenizer.from_str(json.dumps(data)) if any(changed) else raw


def _drop_prefix_space(owner: dict[str, Any], name: str) -> bool:
    """Takes the blank out of one step, or of the steps of a sequence; whether there was one."""
    step = owner.get(name)
    if step is None:
        return False
    kind = step["type"]
    if kind == "Sequence":
        inner = step["normalizers" if name == "normalizer" else "pretokenizers"]
        wrapped = [{name: one} for one in inner]
        changed = [_drop_prefix_space(one, name) for one in wrapped]
        inner[:] = [one[name] for one in wrapped if one[name] is not None]
        return any(changed)
    if kind == "Prepend":
        owner[name] = None
        return True
    if kind == "Metaspace" and step.get("prepend_scheme", "always") != "never":
        owner[name] = step | {"prepend_scheme": "never"}
        return True
    if kind == "ByteLevel" and step.get("add_prefix_space"):
        owner[name] = step | {"add_prefix_space": False}
        return True
    return False
