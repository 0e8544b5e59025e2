"""`tools` and `tool_choice`: what is accepted, and the place that a refusal names."""

from typing import Any

import pytest

from function_call.custom_tools import CustomInput
from function_call.tool_request import ToolRequest, read_tool_request
from protocol.errors import RequestError


def function(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


A, B = function("a"), function("b", {"type": "object", "properties": {"x": {"type": "integer"}}})


def read(*args: Any, **more: Any) -> ToolRequest:
    request = read_tool_request(*args, **more)
    assert request is not None
    return request


def test_no_tools_is_no_request() -> None:
    assert read_tool_request() is None


def test_choices() -> None:
    assert read([A, B]).mode == "auto" and read([A, B]).callable == ("a", "b")
    assert read([A], "none").mode == "none" and read([A], "none").tools == (
        {"type": "function", "function": {"name": "a", "parameters": None}},
    )
    assert read([A, B], "required").mode == "required"
    named = read([A, B], {"type": "function", "function": {"name": "b"}})
    assert (named.mode, named.named, named.callable) == ("required", "b", ("b",))
    assert read([A, B], {"type": "function", "name": "b"}).named == "b"
    allowed = read([A, B], {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [B]}})
    assert (allowed.mode, allowed.callable, allowed.named) == ("required", ("b",), None)
    assert not read([A], None, False).parallel and read([A], None, None).parallel


def test_missing_parameters_are_a_closed_empty_object() -> None:
    assert read([A]).schema("a") == {"type": "object", "properties": {}, "additionalProperties": False}


def test_a_schema_is_checked_in_its_own_dialect() -> None:
    older = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"pair": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}},
    }
    assert read([function("a", older)]).schema("a") == older
    with pytest.raises(RequestError):
        read_tool_request([function("a", {**older, "$schema": "http://nowhere/at-all"})])


def test_legacy_functions() -> None:
    request = read(None, None, None, [{"name": "a"}, {"name": "b"}], {"name": "b"})
    assert request.legacy and request.named == "b" and not request.parallel
    assert [tool["type"] for tool in request.tools] == ["function", "function"]


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        (([],), "tools"),
        (("a",), "tools"),
        ((None, "auto"), "tool_choice"),
        ((None, "required"), "tool_choice"),
        (([A, A],), "tools[1].function.name"),
        (([A, {"type": "function"}],), "tools[1].function"),
        (([A, function("")],), "tools[1].function.name"),
        (([A, function("has blank")],), "tools[1].function.name"),
        (([A, 5],), "tools[1]"),
        (([{"type": "web_search"}],), "tools[0].type"),
        (
            ([A, function("c", {"type": "object", "properties": {"x": {"type": "strnig"}}})],),
            "tools[1].function.parameters",
        ),
        (([A, function("c", {"type": "array"})],), "tools[1].function.parameters"),
        (([A, function("c", [])],), "tools[1].function.parameters"),
        (([A], {"type": "function", "function": {"name": "z"}}), "tool_choice.function.name"),
        (([A], "sometimes"), "tool_choice"),
        (
            ([A], {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}),
            "tool_choice.allowed_tools.tools",
        ),
        (
            ([A], {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [B]}}),
            "tool_choice.allowed_tools.tools[0]",
        ),
        (
            ([A], {"type": "allowed_tools", "allowed_tools": {"mode": "never", "tools": [A]}}),
            "tool_choice.allowed_tools.mode",
        ),
        ((None, None, None, [{"name": "a"}, {"name": "a"}]), "functions[1].name"),
        ((None, None, None, [{"name": "a"}], {"name": "z"}), "function_call.name"),
        ((None, None, None, None, "auto"), "function_call"),
        (([A], None, None, [{"name": "a"}]), "functions"),
        ((None, "auto", None, [{"name": "a"}]), "tool_choice"),
        (
            (
                [
                    {
                        "type": "custom",
                        "custom": {"name": "c", "format": {"type": "grammar", "grammar": {"syntax": "abnf"}}},
                    }
                ],
            ),
            "tools[0].custom.format.grammar",
        ),
    ],
)
def test_refusals_name_the_place(arguments: tuple[Any, ...], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_tool_request(*arguments)
    assert caught.value.info.param == param
    assert caught.value.info.status == 400
    assert param in str(caught.value)


def test_custom_tools_travel_as_functions() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]+"}}
    lark = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}}
    request = read(
        [
            {"type": "custom", "custom": {"name": "text"}},
            {"type": "custom", "custom": {"name": "digits", "format": grammar}},
            {"type": "custom", "custom": {"name": "shape", "format": lark}},
        ],
        {"type": "custom", "custom": {"name": "digits"}},
    )
    assert request.custom == {"text", "digits", "shape"} and request.named == "digits"
    assert request.schema("digits")["properties"]["input"] == {"type": "string", "pattern": "^(?:[0-9]+)$"}
    assert [adjustment.field for adjustment in request.adjustments] == ["tools[2].custom.format.grammar"]


def test_custom_input_is_read_as_it_grows() -> None:
    decoder = CustomInput()
    pieces = ['{"inp', 'ut": "a', "\\", 'n\\u00e9"', "}"]
    assert [decoder.feed(piece) for piece in pieces] == ["", "a", "", "\né", ""]
    assert CustomInput().feed('{"other": {"input": 1}, "input": "x"}') == "x"
    assert CustomInput().feed("[]") == ""


def test_a_schema_can_not_make_checking_recurse_without_end() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(3000):
        schema = {"type": "object", "properties": {"x": schema}}
    with pytest.raises(RequestError) as caught:
        read_tool_request([function("a", schema)])
    assert caught.value.info.param == "tools[0].function.parameters"
