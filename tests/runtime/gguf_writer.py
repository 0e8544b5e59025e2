"""Writes GGUF headers for tests, sound ones and others."""

import struct
from typing import Any


def text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def value(content: Any) -> bytes:
    """Type and value; ints are u32, lists take the type of their first element."""
    if isinstance(content, bool):
        return struct.pack("<I?", 7, content)
    if isinstance(content, int):
        return struct.pack("<II", 4, content)
    if isinstance(content, float):
        return struct.pack("<If", 6, content)
    if isinstance(content, str):
        return struct.pack("<I", 8) + text(content)
    elements = [value(element) for element in content]
    kind = elements[0][:4] if elements else struct.pack("<I", 4)
    return (
        struct.pack("<I", 9) + kind + struct.pack("<Q", len(elements)) + b"".join(element[4:] for element in elements)
    )


def header(metadata: dict[str, Any], tensors: dict[str, tuple[int, ...]] | None = None, version: int = 3) -> bytes:
    tensors = tensors or {}
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    parts += [text(key) + value(content) for key, content in metadata.items()]
    for name, shape in tensors.items():
        parts.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, 0))
    return b"".join(parts)
