"""The quick check of tool schemas: never another word than the library's, and never for long."""

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from function_call.schema_check import MAX_CHECKED_BYTES, MAX_PATTERN_CHARACTERS, SchemaCheck, SchemaFault
from function_call.tool_request import read_tool_request
from protocol.errors import RequestError

KEYWORDS = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$ref",
    "$schema",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "const",
    "contains",
    "default",
    "definitions",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "deprecated",
    "enum",
    "examples",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxItems",
    "maximum",
    "minLength",
    "multipleOf",
    "not",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "title",
    "type",
    "unevaluatedProperties",
    "uniqueItems",
    "x-own",
]
LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        1,
        -1,
        1.0,
        0.5,
        "",
        "string",
        "a",
        "[",
        "#/$defs/a",
        [],
        ["a"],
        ["a", "a"],
        ["string", 1],
        {},
    ]
)
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.dictionaries(st.sampled_from([*KEYWORDS, "a"]), inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=12,
)
DRAFTS = [
    (None, jsonschema.Draft202012Validator),
    ("https://json-schema.org/draft/2019-09/schema", jsonschema.Draft201909Validator),
    ("http://json-schema.org/draft-07/schema#", jsonschema.Draft7Validator),
    ("http://json-schema.org/draft-04/schema#", jsonschema.Draft4Validator),
]


def fault_of(schema: Any) -> str | None:
    try:
        SchemaCheck().check(schema, "parameters")
    except SchemaFault as fault:
        return str(fault)
    return None


@pytest.mark.parametrize(("asked", "validator"), DRAFTS)
@given(schema=st.dictionaries(st.sampled_from(KEYWORDS), SCHEMAS, max_size=5))
def test_it_says_what_the_library_says(asked: str | None, validator: Any, schema: dict[str, Any]) -> None:
    schema = {name: value for name, value in schema.items() if name != "$schema"} | (
        {"$schema": asked} if asked else {}
    )
    try:
        validator.check_schema(schema)
        expected = None
    except jsonschema.SchemaError as error:
        expected = error.message
    found = fault_of(schema)
    assert (found is None) == (expected is None)
    assert expected is None or expected in str(found)


class Unreachable:
    def check_schema(self, schema: Any) -> None:
        raise AssertionError("the library was asked")


def test_an_ordinary_schema_of_a_megabyte_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    field = {"type": ["string", "null"], "description": "x" * 100, "enum": ["a", None], "minLength": 1}
    properties = {f"field_{i}": {"type": "object", "properties": {"a": field}, "required": ["a"]} for i in range(5000)}
    monkeypatch.setattr(jsonschema.Draft202012Validator, "check_schema", Unreachable().check_schema)
    assert fault_of({"type": "object", "properties": properties}) is None


@pytest.mark.parametrize("keyword", ["$anchor", "minLength"])
def test_what_only_the_library_can_judge_is_bounded_over_all_tools(keyword: str) -> None:
    """Rare and right, or wrong: both would take it seconds."""
    value: Any = "here" if keyword == "$anchor" else 1.0
    parameters = {
        "type": "object",
        "properties": {"a": {keyword: value}},
        "description": "x" * (MAX_CHECKED_BYTES // 2),
    }
    tools = [{"type": "function", "function": {"name": f"tool_{i}", "parameters": parameters}} for i in range(2)]
    assert read_tool_request(tools[:1]) is not None
    with pytest.raises(RequestError, match=r"tools\[1\]\.function\.parameters can't be checked") as refused:
        read_tool_request(tools)
    assert refused.value.info.code == "invalid_function_parameters"


def test_patterns_are_bounded_over_all_tools() -> None:
    pattern = "a" * (MAX_PATTERN_CHARACTERS // 2 + 1)
    with pytest.raises(RequestError, match="all patterns together"):
        read_tool_request(
            [
                {
                    "type": "function",
                    "function": {"name": f"tool_{i}", "parameters": {"properties": {"a": {"pattern": pattern}}}},
                }
                for i in range(2)
            ]
        )
