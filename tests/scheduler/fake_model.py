"""What the fake model answers: an id that depends on the seed and on every id before it."""

import zlib
from array import array
from collections.abc import Sequence as Items

from protocol.plan import (
    NOTHING_DRAWN,
)

VOCABULARY = 64
EOS = 63
PAGE = 4


HABITUAL = 100
"""From this seed on the model repeats itself before long, which speculation thrives on."""


def next_token(seed: int, history: Items[int], allowed: Items[int] | None = None) -> int:
    """Depends on the seed and everything before it, so that any misplaced id changes all that follow."""
    if seed >= HABITUAL:
        history = [token % 4 for token in history[-2:]]
    start = zlib.crc32(array("i", history).tobytes(), seed) % VOCABULARY
    if allowed is None:
        return start
    choices = sorted(allowed)
    return choices[start % len(choices)] if choices else NOTHING_DRAWN


def expected_output(
    prompt: Items[int], seed: int, max_tokens: int, end_ids: tuple[int, ...] = (EOS,), min_tokens: int = 0
) -> list[int]:
    """What an undisturbed run answers."""
    ids = list(prompt)
    while len(ids) < len(prompt) + max_tokens:
        early = len(ids) - len(prompt) < min_tokens
        ids.append(
            next_token(seed, ids, [token for token in range(VOCABULARY) if token not in end_ids] if early else None)
        )
        if ids[-1] in end_ids:
            break
    return ids[len(prompt) :]
