"""Whether a tool's parameters are a JSON schema, in a time that an event loop can spare.

jsonschema takes 8 microseconds for every byte of a schema: seconds for a megabyte. So a walk by a table of keywords finds
what is plainly valid, in every draft of the last years alike, and only what is left over goes to the library, if it is
small; its word is the one that counts then, and its error the one that is told.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jsonschema
import msgspec

MAX_CHECKED_BYTES = 16 << 10
"""Of the schemas that the library has to look at in a request: a tenth of a second."""

MAX_PATTERN_CHARACTERS = 32 << 10
"""Of all patterns in a request: each is compiled."""

DIALECTS = (jsonschema.Draft202012Validator, jsonschema.Draft201909Validator, jsonschema.Draft7Validator)
"""Those in which the table below holds."""

TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
SCHEMAS = frozenset(
    [
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
SCHEMA_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
SCHEMA_MAPS = frozenset(("$defs", "definitions", "dependentSchemas", "properties"))
STRINGS = frozenset(
    ("$comment", "$ref", "$schema", "contentEncoding", "contentMediaType", "description", "format", "title")
)
FLAGS = frozenset(("deprecated", "readOnly", "uniqueItems", "writeOnly"))
NUMBERS = frozenset(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"))
COUNTS = frozenset(
    ["maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems", "minLength", "minProperties"]
)
RARE = frozenset(
    [
        "$anchor",
        "$dynamicAnchor",
        "$dynamicRef",
        "$id",
        "$recursiveAnchor",
        "$recursiveRef",
        "$vocabulary",
        "dependencies",
    ]
)
"""Whose values are the library's to judge."""


class SchemaFault(Exception):
    """Why it is no schema, or none that can be checked here."""


class SchemaCheck:
    """The check of all schemas of one request."""

    def __init__(self) -> None:
        self._bytes_left = MAX_CHECKED_BYTES
        self._pattern_characters_left = MAX_PATTERN_CHARACTERS

    def check(self, schema: Mapping[str, Any], place: str) -> None:
        """SchemaFault with what is wrong at `place`, lower case; RecursionError for one that is nested too deeply."""
        dialect = _dialect(schema)
        strange = self._strange(schema, "") if dialect in DIALECTS else ".$schema"
        if strange is None:
            return
        self._bytes_left -= len(msgspec.json.encode(schema))
        if self._bytes_left < 0:
            raise SchemaFault(
                f"can't be checked: {place}{strange} is wrong or rare, and all schemas with such places "
                f"may have {MAX_CHECKED_BYTES} bytes together"
            )
        try:
            dialect.check_schema(schema)
        except jsonschema.SchemaError as error:
            where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
            raise SchemaFault(f"is no valid JSON schema: {error.message} (at {place}{where})") from None

    def _strange(self, schema: Any, path: str) -> str | None:
        """The first place that is not plainly valid, None if there is none."""
        if isinstance(schema, bool):
            return None
        if not isinstance(schema, dict):
            return path
        for keyword, value in schema.items():
            here = f"{path}.{keyword}"
            if keyword in SCHEMAS:
                found = self._strange(value, here)
            elif keyword in SCHEMA_MAPS:
                found = self._in_map(value, here)
            elif keyword in SCHEMA_LISTS:
                found = self._in_list(value, here)
            elif keyword == "patternProperties":
                found = self._in_map(value, here)
                if found is None and not all(map(self._is_pattern, value)):
                    found = here
            else:
                test = self._is_pattern if keyword == "pattern" else TESTS.get(keyword)
                found = here if test is not None and not test(value) else None
            if found is not None:
                return found
        return None

    def _in_map(self, value: Any, path: str) -> str | None:
        if not isinstance(value, dict):
            return path
        places = (self._strange(inner, f"{path}.{name}") for name, inner in value.items())
        return next((place for place in places if place is not None), None)

    def _in_list(self, value: Any, path: str) -> str | None:
        if not isinstance(value, list) or not value:
            return path
        places = (self._strange(inner, f"{path}[{position}]") for position, inner in enumerate(value))
        return next((place for place in places if place is not None), None)

    def _is_pattern(self, value: Any) -> bool:
        if not isinstance(value, str):
            return False
        self._pattern_characters_left -= len(value)
        if self._pattern_characters_left < 0:
            raise SchemaFault(f"all patterns together have more than {MAX_PATTERN_CHARACTERS} characters")
        try:
            re.compile(value)
        except (re.error, OverflowError):
            return False
        return True


def _dialect(schema: Mapping[str, Any]) -> Any:
    """The validator that `$schema` asks for: tuples and bounds are written otherwise in older drafts."""
    latest = jsonschema.Draft202012Validator
    asked = schema.get("$schema")
    return jsonschema.validators.validator_for({"$schema": asked}, default=latest) if isinstance(asked, str) else latest


def _is_type(value: Any) -> bool:
    if isinstance(value, list):
        return (
            bool(value)
            and all(isinstance(one, str) and one in TYPES for one in value)
            and len(set(value)) == len(value)
        )
    return isinstance(value, str) and value in TYPES


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_string_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value) and len(set(value)) == len(value)


TESTS: Mapping[str, Callable[[Any], bool]] = (
    dict.fromkeys(STRINGS, lambda value: isinstance(value, str))
    | dict.fromkeys(FLAGS, lambda value: isinstance(value, bool))
    | dict.fromkeys(NUMBERS, _is_number)
    | dict.fromkeys(COUNTS, lambda value: type(value) is int and value >= 0)
    | dict.fromkeys(("enum", "examples"), lambda value: isinstance(value, list))
    | dict.fromkeys(RARE, lambda value: False)
    | {
        "type": _is_type,
        "required": _is_string_list,
        "multipleOf": lambda value: _is_number(value) and value > 0,
        "dependentRequired": lambda value: isinstance(value, dict) and all(map(_is_string_list, value.values())),
    }
)
