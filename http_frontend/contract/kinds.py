"""The types that a field can have. Each checks a value at the edge, and describes itself for OpenAPI and for the docs."""

import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from http_frontend.contract.review import Review
from protocol.errors import ErrorInfo, RequestError


class Kind(Protocol):
    def check(self, value: Any, path: str, review: Review) -> Any:
        """The value as the code behind the edge wants it; RequestError naming `path` if it is not of this kind."""

    def schema(self) -> dict[str, Any]:
        """The kind as JSON schema, for OpenAPI."""

    def describe(self) -> str:
        """A few words for the table: `number, 0 to 2`."""


def refuse(path: str, message: str, code: str = "invalid_value") -> NoReturn:
    raise RequestError(f"{path}: {message}", param=path, code=code)


def type_name(value: Any) -> str:
    """What JSON calls the type of the value."""
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")


def refuse_type(path: str, expected: str, value: Any) -> NoReturn:
    refuse(path, f"expected {expected}, got {type_name(value)}", "invalid_type")


@dataclass(frozen=True)
class Flag:
    def check(self, value: Any, path: str, review: Review) -> bool:
        if not isinstance(value, bool):
            refuse_type(path, "a boolean", value)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def describe(self) -> str:
        return "boolean"


@dataclass(frozen=True)
class Number:
    """A finite number in [low, high]; with `above` the lower end is excluded."""

    low: float | None = None
    high: float | None = None
    above: bool = False

    def check(self, value: Any, path: str, review: Review) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            refuse_type(path, "a number", value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            refuse(path, "must be a finite number")
        if self.low is not None and (number < self.low or (self.above and number == self.low)):
            refuse(path, f"must be {'above' if self.above else 'at least'} {self.low:g}, got {value}")
        if self.high is not None and number > self.high:
            refuse(path, f"must be at most {self.high:g}, got {value}")
        return number

    def schema(self) -> dict[str, Any]:
        bounds: dict[str, Any] = {"type": "number"}
        if self.low is not None:
            bounds["exclusiveMinimum" if self.above else "minimum"] = self.low
        if self.high is not None:
            bounds["maximum"] = self.high
        return bounds

    def describe(self) -> str:
        low = "" if self.low is None else f"{'above' if self.above else 'from'} {self.low:g}"
        high = "" if self.high is None else f"to {self.high:g}"
        return ", ".join(["number", *filter(None, [f"{low} {high}".strip()])])


@dataclass(frozen=True)
class Integer:
    """A whole number in [low, high]. 5.0 is one, as JSON knows a single type of number."""

    low: int | None = None
    high: int | None = None

    def check(self, value: Any, path: str, review: Review) -> int:
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            refuse_type(path, "an integer", value)
        if self.low is not None and value < self.low:
            refuse(path, f"must be at least {self.low}, got {value}", "integer_below_min_value")
        if self.high is not None and value > self.high:
            refuse(path, f"must be at most {self.high}, got {value}", "integer_above_max_value")
        return value

    def schema(self) -> dict[str, Any]:
        bounds = {"minimum": self.low, "maximum": self.high}
        return {"type": "integer"} | {name: bound for name, bound in bounds.items() if bound is not None}

    def describe(self) -> str:
        low = "" if self.low is None else f"from {self.low}"
        high = "" if self.high is None else f"to {self.high}"
        return ", ".join(["integer", *filter(None, [f"{low} {high}".strip()])])


@dataclass(frozen=True)
class Text:
    min_length: int = 0
    max_length: int | None = None
    pattern: str | None = None

    def check(self, value: Any, path: str, review: Review) -> str:
        if not isinstance(value, str):
            refuse_type(path, "a string", value)
        if len(value) < self.min_length:
            refuse(
                path, "must not be empty" if self.min_length == 1 else f"needs at least {self.min_length} characters"
            )
        if self.max_length is not None and len(value) > self.max_length:
            refuse(path, f"may have at most {self.max_length} characters, got {len(value)}", "string_above_max_length")
        if self.pattern is not None and re.fullmatch(self.pattern, value) is None:
            refuse(path, f"must match {self.pattern}")
        return value

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        if self.min_length:
            schema["minLength"] = self.min_length
        if self.max_length is not None:
            schema["maxLength"] = self.max_length
        if self.pattern is not None:
            schema["pattern"] = f"^(?:{self.pattern})$"
        return schema

    def describe(self) -> str:
        return "string" if self.max_length is None else f"string, up to {self.max_length} characters"


@dataclass(frozen=True)
class Word:
    """One of a closed set of strings."""

    words: tuple[str, ...]

    def check(self, value: Any, path: str, review: Review) -> str:
        if not isinstance(value, str):
            refuse_type(path, "a string", value)
        if value not in self.words:
            refuse(path, f"must be one of {', '.join(self.words)}; got {value[:64]!r}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)}

    def describe(self) -> str:
        return " or ".join(f'"{word}"' for word in self.words)


@dataclass(frozen=True)
class ListOf:
    item: Kind
    low: int = 0
    high: int | None = None

    def check(self, value: Any, path: str, review: Review) -> list[Any]:
        if not isinstance(value, list):
            refuse_type(path, "a list", value)
        if len(value) < self.low:
            refuse(path, "must not be empty" if self.low == 1 else f"needs at least {self.low} items", "empty_array")
        if self.high is not None and len(value) > self.high:
            refuse(path, f"may have at most {self.high} items, got {len(value)}", "array_above_max_length")
        check = self.item.check
        return [check(item, f"{path}[{position}]", review) for position, item in enumerate(value)]

    def schema(self) -> dict[str, Any]:
        bounds = {"minItems": self.low or None, "maxItems": self.high}
        sizes = {name: bound for name, bound in bounds.items() if bound is not None}
        return {"type": "array", "items": self.item.schema()} | sizes

    def describe(self) -> str:
        return f"list of {self.item.describe()}" + ("" if self.high is None else f" (at most {self.high})")


@dataclass(frozen=True)
class TokenIds:
    """A list of token ids within int32: one comparison for the whole list, not one check per item. The vocabulary's end
    is the tokenizer manager's to know."""

    low: int = 0

    def check(self, value: Any, path: str, review: Review) -> list[int]:
        if not isinstance(value, list):
            refuse_type(path, "a list of token ids", value)
        if len(value) < self.low:
            refuse(path, "must not be empty", "empty_array")
        if not all(type(item) is int for item in value):
            position = next(place for place, item in enumerate(value) if type(item) is not int)
            refuse_type(f"{path}[{position}]", "a token id", value[position])
        if value and (min(value) < 0 or max(value) >= 2**31):
            position = next(place for place, item in enumerate(value) if not 0 <= item < 2**31)
            refuse(f"{path}[{position}]", f"token id {value[position]} is out of the vocabulary")
        return value

    def schema(self) -> dict[str, Any]:
        item = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
        return {"type": "array", "items": item, "minItems": self.low}

    def describe(self) -> str:
        return "list of token ids"


@dataclass(frozen=True)
class MapOf:
    """An object with keys of the client's choosing."""

    value: Kind
    high: int | None = None

    def check(self, value: Any, path: str, review: Review) -> dict[str, Any]:
        if not isinstance(value, dict):
            refuse_type(path, "an object", value)
        if self.high is not None and len(value) > self.high:
            refuse(path, f"may have at most {self.high} entries, got {len(value)}")
        return {key: self.value.check(item, f"{path}.{key[:64]}", review) for key, item in value.items()}

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.value.schema()}

    def describe(self) -> str:
        return f"object of {self.value.describe()}"


@dataclass(frozen=True)
class Anything:
    """Any JSON value: what is inside is checked where it is used."""

    def check(self, value: Any, path: str, review: Review) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return {}

    def describe(self) -> str:
        return "any JSON"


@dataclass(frozen=True)
class Either:
    """The first kind that takes the value. If none does, the complaint that says most is told."""

    kinds: tuple[Kind, ...]

    def check(self, value: Any, path: str, review: Review) -> Any:
        complaint: RequestError | None = None
        for kind in self.kinds:
            try:
                return kind.check(value, path, review)
            except RequestError as error:
                if complaint is None or _says_more(error.info, complaint.info):
                    complaint = error
        if complaint is None or (complaint.info.code == "invalid_type" and complaint.info.param == path):
            refuse_type(path, self.describe(), value)
        raise complaint

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [kind.schema() for kind in self.kinds]}

    def describe(self) -> str:
        return " or ".join(kind.describe() for kind in self.kinds)


def _says_more(new: ErrorInfo, old: ErrorInfo) -> bool:
    """A wrong value beats a wrong type, and what was found further inside beats what was found at the door."""
    if old.code != "invalid_type":
        return False
    return new.code != "invalid_type" or (new.param or "") >= (old.param or "")
