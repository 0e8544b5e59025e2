"""The review of one request: what was done otherwise than a field said, and whether that is allowed."""

import difflib
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from protocol.errors import RequestError
from protocol.requests import Adjustment
from runtime.engine_config import EngineConfig

MAX_HEADER_BYTES = 2048
MAX_GUESSES = 32
"""Adjustments after which nobody guesses any more what an unknown field meant: a body may hold a hundred thousand."""

Action = Literal["clamped", "ignored", "changed", "duplicated", "extension"]

# Told, but no reason to refuse even in strict mode: nothing of the answer depends on them.
HARMLESS_ACTIONS = frozenset(("duplicated", "extension"))


class Review:
    """Collects adjustments. In strict mode the first one that is not harmless becomes a 400 that names its field."""

    def __init__(self, config: EngineConfig, strict: bool) -> None:
        self.config = config
        self.strict = strict
        self.adjustments: list[Adjustment] = []

    def tell(self, field: str, action: Action, reason: str, value: Any = None, harmless: bool = False) -> None:
        """Notes that `field` was not simply honoured; RequestError in strict mode unless harmless."""
        if self.strict and not harmless and action not in HARMLESS_ACTIONS:
            raise RequestError(
                f"{field}: {reason} (strict mode refuses what would be {action})", param=field, code="strict"
            )
        self.adjustments.append(Adjustment(field, action, reason, value))

    def tell_unknown(self, path: str, name: str, known: Iterable[str]) -> None:
        """Notes a field that no table knows, with the known one that it may have meant."""
        guesses = len(self.adjustments) < MAX_GUESSES
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.8) if guesses else []
        hint = f"; did you mean {near[0]}?" if near else ""
        self.tell(path[:128], "ignored", f"unknown field{hint}")

    def take(self, found_behind: Iterable[Adjustment]) -> None:
        """Adds what the processes behind have found, under the same rule."""
        for found in found_behind:
            # A template of the server's own choosing is nothing that the client could have asked for differently.
            harmless = found.field == "chat_template"
            self.tell(found.field, found.action, found.reason, found.value, harmless)

    def note(self, found_while_decoding: Iterable[Adjustment]) -> None:
        """Adds what was found after the answer had begun, when it is too late to refuse."""
        self.adjustments.extend(found_while_decoding)

    def listed(self) -> list[dict[str, Any]]:
        """The extension `adjustments` of a body or a final chunk."""
        return [adjustment_fields(adjustment) for adjustment in self.adjustments]

    def header(self) -> str:
        """The adjustments as a compact ASCII JSON list of at most MAX_HEADER_BYTES, then "+N more"; "" for none."""
        if not self.adjustments:
            return ""
        entries: list[str] = []
        size = 2
        for position, adjustment in enumerate(self.adjustments):
            entry = _ascii_json(adjustment)
            rest = len(self.adjustments) - position
            room = MAX_HEADER_BYTES - (len(f',"+{rest} more"') if rest > 1 else 0)
            if size + len(entry) + 1 > room:
                entries.append(f'"+{rest} more"')
                break
            entries.append(entry)
            size += len(entry) + 1
        return f"[{','.join(entries)}]"


def adjustment_fields(adjustment: Adjustment) -> dict[str, Any]:
    """An adjustment as it stands in bodies and in the header."""
    fields = {"field": adjustment.field, "action": adjustment.action, "reason": adjustment.reason}
    return fields if adjustment.value is None else fields | {"value": adjustment.value}


def _ascii_json(adjustment: Adjustment) -> str:
    text = msgspec.json.encode(adjustment_fields(adjustment)).decode()
    if text.isascii():
        return text
    # JSON's own escape, in UTF-16 code units.
    units = memoryview(text.encode("utf-16-be")).cast("B")
    codes = [(units[at] << 8) | units[at + 1] for at in range(0, len(units), 2)]
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)
