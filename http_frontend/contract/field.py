"""A field of a request: its kind, what becomes of it in this deployment, and where."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from http_frontend.contract.kinds import Kind, refuse, refuse_type
from http_frontend.contract.review import Review
from protocol.errors import RequestError
from runtime.engine_config import EngineConfig

Tier = Literal["honoured", "clamped", "ignored", "extension", "rejected"]


@dataclass(frozen=True)
class Ruling:
    """What this deployment does with a field, and why."""

    tier: Tier
    reason: str = ""


HONOURED = Ruling("honoured")
EXTENSION = Ruling("extension", "not in OpenAI's API; honoured here")


@dataclass(frozen=True)
class Field:
    """One field. `neutral` are values that ask for nothing, so that an ignored or rejected field with one is fine.

    `probe` are two values (with what else the body needs, see tests) whose answers differ if the field is honoured.
    """

    name: str
    kind: Kind
    effect: str
    ruling: Ruling | Callable[[EngineConfig], Ruling] = HONOURED
    required: bool = False
    probe: tuple[Any, Any] | None = None
    neutral: tuple[Any, ...] = ()
    harmless: bool = False

    def rule(self, config: EngineConfig) -> Ruling:
        return self.ruling(config) if callable(self.ruling) else self.ruling

    def check(self, value: Any, path: str, review: Review) -> Any:
        """The checked value, or None where the field asks for nothing; RequestError for a rejected field or a bad value."""
        ruling = self.rule(review.config)
        asks = value not in self.neutral
        if ruling.tier == "rejected":
            if asks:
                raise RequestError(f"{path}: {ruling.reason}", param=path, code="unsupported_parameter")
            return None
        checked = self.kind.check(value, path, review)
        if ruling.tier == "ignored" and asks:
            review.tell(path, "ignored", ruling.reason, harmless=self.harmless)
        return checked


@dataclass(frozen=True)
class Record:
    """An object with known fields: a body, or something nested in one. Null means that a field is not given."""

    fields: tuple[Field, ...]

    @cached_property
    def by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}

    @cached_property
    def required(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields if field.required)

    def check(self, value: Any, path: str, review: Review) -> dict[str, Any]:
        if not isinstance(value, dict):
            refuse_type(path or "body", "an object", value)
        checked: dict[str, Any] = {}
        for name, item in value.items():
            field = self.by_name.get(name)
            here = f"{path}.{name}" if path else name
            if field is None:
                review.tell_unknown(here, name, self.by_name)
            elif item is not None and (kept := field.check(item, here, review)) is not None:
                checked[name] = kept
        for name in self.required:
            if name not in checked:
                refuse(f"{path}.{name}" if path else name, "is required", "missing_required_parameter")
        return checked

    def schema(self) -> dict[str, Any]:
        properties = {field.name: _nullable(field) for field in self.fields}
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        return schema | ({"required": list(self.required)} if self.required else {})

    def describe(self) -> str:
        return "object"


def _nullable(field: Field) -> dict[str, Any]:
    schema = field.kind.schema()
    described = {"description": field.effect}
    if field.required:
        return schema | described
    return {"anyOf": [schema, {"type": "null"}]} | described


def nested_fields(kind: Kind) -> Sequence[tuple[str, Field]]:
    """Fields inside a kind, with the path that leads to each from it (`[].function.name`)."""
    if isinstance(kind, Record):
        found: list[tuple[str, Field]] = []
        for field in kind.fields:
            found.append((f".{field.name}", field))
            found.extend((f".{field.name}{path}", inner) for path, inner in nested_fields(field.kind))
        return found
    item = getattr(kind, "item", None)
    if item is not None:
        return [(f"[]{path}", field) for path, field in nested_fields(item)]
    found = []
    for option in getattr(kind, "kinds", ()):
        found.extend(nested_fields(option))
    return found
