"""Which replica has computed the beginning of a prompt: a bounded memory of hashed prefixes, block by block."""

from collections import OrderedDict

from protocol.ids import TOKEN_BYTES

BLOCK_TOKENS = 32
_MAX_BLOCKS = 1024
_BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES


class PrefixAffinity:
    """Remembers at most `capacity` blocks, the least recently used go first. Guesses only: replicas evict on their own."""

    def __init__(self, capacity: int = 1 << 17) -> None:
        self._capacity = capacity
        self._replicas: OrderedDict[int, int] = OrderedDict()  # hash of the prefix -> bit set of replicas

    def matched_tokens(self, blocks: list[int]) -> dict[int, int]:
        """For each replica that has seen any of it: how many tokens of the prompt's beginning."""
        matched: dict[int, int] = {}
        alive = -1
        for position, block in enumerate(blocks, start=1):
            alive &= self._replicas.get(block, 0)
            if not alive:
                break
            bits = alive
            while bits:
                lowest = bits & -bits
                matched[lowest.bit_length() - 1] = position * BLOCK_TOKENS
                bits ^= lowest
        return matched

    def record(self, blocks: list[int], replica: int) -> None:
        """The replica is about to compute this prompt."""
        # Backwards, so that a prefix is younger than what continues it, and outlives it.
        for block in reversed(blocks):
            self._replicas[block] = self._replicas.get(block, 0) | 1 << replica
            self._replicas.move_to_end(block)
        while len(self._replicas) > self._capacity:
            self._replicas.popitem(last=False)

    def forget(self, replica: int) -> None:
        """The replica has lost its cache."""
        mask = ~(1 << replica)
        for block in [block for block, bits in self._replicas.items() if bits >> replica & 1]:
            bits = self._replicas[block] & mask
            if bits:
                self._replicas[block] = bits
            else:
                del self._replicas[block]


def prefix_blocks(prompt_ids: bytes, namespace: str) -> list[int]:
    """A hash for each beginning of the prompt that is a whole number of blocks long."""
    value = hash(namespace)
    blocks = []
    for end in range(_BLOCK_BYTES, min(len(prompt_ids), _MAX_BLOCKS * _BLOCK_BYTES) + 1, _BLOCK_BYTES):
        value = hash((value, prompt_ids[end - _BLOCK_BYTES : end]))
        blocks.append(value)
    return blocks
