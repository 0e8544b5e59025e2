"""Every finished text parses and validates, whatever the schema; what can't be promised is refused by name."""

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import xgrammar

from scheduler.grammar.schema.converter import schema_grammar
from scheduler.grammar.schema.errors import GrammarRefused
from scheduler.grammar.schema.keywords import KEYWORDS

Texts = Callable[..., list[str]]

NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
    "required": ["v", "next"],
}
INTEGERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}},
}

ENDLESS = {
    "type": "object",
    "properties": {"x": {"type": "array", "items": {"$ref": "#/$defs/endless"}, "minItems": 1}},
    "required": ["x"],
}

ENFORCED: dict[str, list[Any]] = {
    "type": [{"type": name} for name in ("object", "array", "string", "number", "integer", "boolean", "null")]
    + [{"type": ["string", "null", "integer"]}, {"type": ["number", "integer"]}],
    "enum": [
        {"enum": ["a", 1, None, True, {"a": [1]}, 'é"\\\n']},
        {"type": "string", "enum": ["a", 1]},
        {"enum": [1, 20, 300], "minimum": 10},
        {"enum": [f"value {number}" for number in range(2000)]},
    ],
    "const": [{"const": {"b": 1, "a": "é"}}, {"enum": [1, 2, 3], "const": 2.0}, {"const": "😀"}],
    "minLength": [
        {"type": "string", "minLength": 3},
        {"minLength": 2},
        {"type": "string", "minLength": 3, "maxLength": 5},
    ],
    "maxLength": [
        {"type": "string", "maxLength": 2},
        {"type": "string", "maxLength": 0},
        {"type": "string", "maxLength": 300},
    ],
    "pattern": [
        {"type": "string", "pattern": pattern}
        for pattern in (
            r"^[a-z]{2,4}-\d+$",
            "ab",
            "^[A-Z]",
            r"^[^a]{1,9}$",
            "^.{1,3}$",
            '^"$',
            r"^\\$",
            r"^\n\t$",
            r"^[\s\S]{2}$",
            r"^(a|bc)*d?$",
            r"^\w+\s\W{2}$",
            r"^(?:(\d{4})-)?é[日-本]$",
            r"^\u0041\x42[\u{1F600}-\u{1F64F}]$".replace("\\u{1F600}-\\u{1F64F}", "😀-😏"),
            r"^[^\s,]+$",
            r"^$",
            r"^x{3,}?$",
            r"^[a-zA-Z0-9_.-]{1,255}$",
            r"^(?:[à-ü]|[日-本]|\d){9,40}$",
        )
    ]
    + [
        {"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 4},
        {"pattern": "^a{2,3}$", "maxLength": 3},
    ],
    "format": [
        {"type": "string", "format": name}
        for name in ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
    ]
    + [{"type": "string", "format": name} for name in ("uri-reference", "json-pointer", "password")]
    + [{"type": "integer", "format": "int32"}, {"type": "string", "format": "uuid", "maxLength": 36}],
    "minimum": [{"type": "integer", "minimum": 7}, {"type": "number", "minimum": -0.25}, {"minimum": 3}],
    "maximum": [
        {"type": "integer", "minimum": -3, "maximum": 117},
        {"type": "number", "minimum": -1.5, "maximum": 2.25},
    ],
    "exclusiveMinimum": [
        {"type": "integer", "exclusiveMinimum": -3},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    ],
    "exclusiveMaximum": [
        {"type": "integer", "exclusiveMaximum": 5},
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    ],
    "multipleOf": [
        {"type": "integer", "multipleOf": 7},
        {"type": "number", "multipleOf": 250, "minimum": 1, "maximum": 9000},
    ],
    "items": [
        {"type": "array", "items": {"type": "integer"}},
        {"items": False},
        {"type": "array", "items": {"enum": ["x"]}},
    ],
    "prefixItems": [
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}, "minItems": 2},
        {"type": "array", "prefixItems": [{"type": "integer"}, False, {}]},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "minItems": 3, "maxItems": 4},
    ],
    "minItems": [
        {"type": "array", "items": {"type": "integer"}, "minItems": 2},
        {"minItems": 1, "items": {"type": "null"}},
    ],
    "maxItems": [
        {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 3},
        {"type": "array", "maxItems": 0},
    ],
    "uniqueItems": [
        {"type": "array", "items": {"enum": [1, 2, "x", 1.0]}, "uniqueItems": True, "minItems": 2},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 1},
    ],
    "properties": [
        INTEGERS,
        {"properties": {'é"\\\n日': {"type": "integer"}}, "required": ['é"\\\n日']},
        {"properties": {"a": False}},
    ],
    "required": [{**INTEGERS, "required": ["b", "z"]}, {"type": "object", "required": ["zz"]}, {"required": ["a"]}],
    "additionalProperties": [
        {**INTEGERS, "additionalProperties": {"type": "boolean"}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"properties": {"a": {"type": "integer"}, "ab": {"type": "null"}}, "additionalProperties": True},
        {"type": "object", "additionalProperties": False},
    ],
    "patternProperties": [
        {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}},
        {
            "properties": {"y": {"type": "null"}},
            "patternProperties": {"^x_[a-z]+$": {"type": "integer"}},
            "additionalProperties": False,
        },
    ],
    "propertyNames": [
        {"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}, "additionalProperties": {"type": "integer"}},
        {"propertyNames": {"enum": ["red", "blue"]}, "additionalProperties": {"type": "integer"}},
        {
            "properties": {"zz": {}, "a": {"type": "null"}},
            "propertyNames": {"maxLength": 1},
            "additionalProperties": False,
        },
    ],
    "minProperties": [{**INTEGERS, "minProperties": 2}, {"minProperties": 1, "additionalProperties": {"type": "null"}}],
    "maxProperties": [{**INTEGERS, "maxProperties": 1}, {"maxProperties": 2, "additionalProperties": {"type": "null"}}],
    "dependentRequired": [
        {**INTEGERS, "dependentRequired": {"a": ["b"]}},
        {**INTEGERS, "required": ["a"], "dependentRequired": {"a": ["c"]}},
    ],
    "unevaluatedProperties": [
        {**INTEGERS, "unevaluatedProperties": {"type": "boolean"}},
        {"allOf": [INTEGERS, {"properties": {"d": {"type": "null"}}}], "unevaluatedProperties": False},
    ],
    "unevaluatedItems": [{"type": "array", "prefixItems": [{"type": "integer"}], "unevaluatedItems": False}],
    "anyOf": [
        {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
        {**INTEGERS, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": -5}, False]},
    ],
    "oneOf": [
        {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
        {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": kind}, "x": {"type": "null"}}, "required": ["kind"]}
                for kind in ("cat", "dog")
            ]
        },
        {"oneOf": [{"const": 1}, {"enum": [2, "a"]}]},
    ],
    "allOf": [
        {"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 9}]},
        {
            "allOf": [
                {**INTEGERS, "required": ["a"]},
                {"properties": {"a": {"minimum": 5}, "d": {"type": "string"}}, "required": ["d"]},
            ]
        },
        {"allOf": [{"properties": {"a": {"type": "null"}}, "additionalProperties": False}, {"properties": {"b": {}}}]},
        {"allOf": [{"items": {"type": "integer"}}, {"items": {"minimum": 3}, "minItems": 1}]},
    ],
    "$ref": [
        {"$ref": "#/$defs/n", "$defs": {"n": NODE}},
        {"$ref": "#/$defs/n", "maximum": 3, "$defs": {"n": {"type": "integer"}}},
        {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#"}}}, "required": ["c"]},
        {"properties": {"a": {"$ref": "#/$defs/endless"}, "b": {}}, "$defs": {"endless": ENDLESS}},
        {"anyOf": [{"$ref": "#/$defs/endless"}, {"type": "null"}], "$defs": {"endless": ENDLESS}},
        {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "integer"}}},
    ],
    "$defs": [{"$defs": {"unused": {"type": "string"}}, "type": "null"}],
    "definitions": [{"$ref": "#/definitions/n", "definitions": {"n": {"type": "integer"}}}],
    "$anchor": [{"$ref": "#foo", "$defs": {"n": {"$anchor": "foo", "type": "integer"}}}],
    "not": [{"enum": [1, 2, 3], "not": {"const": 2}}],
    "if": [{"enum": [1, "a", 200], "if": {"type": "integer"}, "then": {"minimum": 100}, "else": {"minLength": 1}}],
    "then": [{"enum": [1, 2], "then": False}],
    "else": [{"enum": [1, 2], "else": False}],
    "contains": [{"enum": [[1], ["a"], []], "contains": {"type": "string"}}],
    "minContains": [{"enum": [["a"], ["a", "b"]], "contains": {"type": "string"}, "minContains": 2}],
    "maxContains": [{"enum": [["a"], ["a", "b"]], "contains": {"type": "string"}, "maxContains": 1}],
    "dependentSchemas": [{"enum": [{"a": 1}, {"a": 1, "b": 2}], "dependentSchemas": {"a": {"required": ["b"]}}}],
}

REFUSED: list[tuple[Any, str, str]] = [
    (False, "$", "no value is valid"),
    ({"type": "wibble"}, "'type' at $", "wibble"),
    ({"properties": {"a": {"items": {"not": {}}}}}, "'not' at $.properties.a.items", "enum"),
    ({"contains": {"type": "null"}}, "'contains' at $", "enum"),
    ({"if": {"type": "null"}, "then": False}, "'if' at $", "enum"),
    ({"dependentSchemas": {"a": {}}}, "'dependentSchemas' at $", "enum"),
    ({"type": "integer", "wibble": 3}, "'wibble' at $", "not known"),
    ({"type": "string", "nullable": True}, "'nullable' at $", "null"),
    ({"type": "array", "items": [{"type": "integer"}]}, "'items' at $", "wrong type"),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "'uniqueItems' at $", "enum"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf' at $", "anyOf"),
    ({"type": "string", "format": "idn-email"}, "'format' at $", "idn-email"),
    ({"type": "string", "pattern": "^a+$", "format": "date"}, "'pattern' at $", "more than one"),
    ({"type": "string", "pattern": "^(ab)+$", "maxLength": 3}, "'pattern' at $", "maxLength"),
    ({"type": "string", "pattern": r"^\bab$"}, "'pattern' at $", "escape"),
    ({"type": "string", "pattern": "^(?!a)b$"}, "'pattern' at $", "look-around"),
    ({"type": "string", "pattern": r"^(a)\1$"}, "'pattern' at $", "escape"),
    ({"type": "number", "multipleOf": 0.01}, "'multipleOf' at $", "whole"),
    ({"type": "integer", "multipleOf": 1000}, "'multipleOf' at $", "128"),
    ({"patternProperties": {"^x": {}}, "properties": {"xy": {}}}, "'patternProperties' at $", "declared"),
    ({"$ref": "https://example.com/schema.json"}, "'$ref' at $", "not in this document"),
    ({"$ref": "#/$defs/missing"}, "'$ref' at $", "leads nowhere"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "'$ref' at $.$defs.a", "itself"),
    ({"$ref": "#/$defs/endless", "$defs": {"endless": ENDLESS}}, "without end", "no value is valid"),
    ({"$dynamicRef": "#n"}, "'$dynamicRef' at $", "not supported"),
    ({"enum": []}, "'enum' at $", "empty"),
    ({"minLength": -1}, "'minLength' at $", "whole number"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "$", "no value is valid"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "$", "no value is valid"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "$", "no value is valid"),
    ({"properties": {"a b": False}, "required": ["a b"]}, '$.properties["a b"]', "no value is valid"),
    ({"enum": [1, 2], "type": "string"}, "$", "no value"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, "$.allOf[1]", "no type is left"),
    ({"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 2}, "$", "minProperties"),
    ({"properties": {"a": {"$id": "x", "type": "null"}}}, "'$id' at $.properties.a", "within"),
]


def validate(schema: Any, text: str) -> None:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))


CASES = [
    pytest.param(schema, id=f"{name}-{index}")
    for name, schemas in ENFORCED.items()
    for index, schema in enumerate(schemas)
]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("schema", [*CASES, pytest.param({}, id="empty"), pytest.param(True, id="true")])
def test_every_finished_text_is_valid(texts_of: Texts, schema: Any, strict: bool) -> None:
    texts = texts_of(schema, strict=strict)
    assert texts
    for text in texts:
        validate(schema, text)


@pytest.mark.parametrize(("schema", "where", "why"), REFUSED)
def test_what_can_not_be_promised_is_refused_by_name(schema: Any, where: str, why: str) -> None:
    with pytest.raises(GrammarRefused) as refused:
        schema_grammar(schema, "compact", strict=True)
    assert where in str(refused.value)
    assert why in str(refused.value)


def test_every_keyword_of_the_table_is_tested() -> None:
    promised = {name for name, (treatment, _) in KEYWORDS.items() if treatment in ("enforced", "partly")}
    assert promised == set(ENFORCED)


@pytest.mark.parametrize("name", [name for name, (treatment, _) in KEYWORDS.items() if treatment == "refused"])
def test_refused_keywords_are_named(name: str) -> None:
    with pytest.raises(GrammarRefused, match=r"at \$\.properties\.a"):
        schema_grammar({"properties": {"a": {name: True}}}, "compact", strict=True)


@pytest.mark.parametrize("name", [name for name, (treatment, _) in KEYWORDS.items() if treatment == "annotation"])
def test_annotations_change_nothing(name: str) -> None:
    plain = schema_grammar({"type": "integer"}, "compact", strict=True)
    assert schema_grammar({"type": "integer", name: "x"}, "compact", strict=True) == plain


def random_schema(source: random.Random, depth: int) -> Any:
    """A schema as people write them, of everything at once."""
    simple: list[Any] = [
        {"type": "string"},
        {"type": "integer", "minimum": source.randrange(-50, 0), "maximum": source.randrange(1, 2000)},
        {"type": "number", "exclusiveMinimum": 0, "maximum": source.randrange(1, 9) / 4},
        {"type": "boolean"},
        {"type": ["null", "string"], "maxLength": source.randrange(1, 40)},
        {"enum": source.sample(["a", "b", 1, 2.5, None, True, "ü", [], {"x": 1}], 3)},
        {"type": "string", "pattern": source.choice(["^[A-Z]{2}\\d{1,3}$", "^#[0-9a-f]{6}$", "^(yes|no)$"])},
        {"type": "string", "format": source.choice(["date", "ipv4", "uuid"])},
        {"$ref": "#/$defs/leaf"},
    ]
    if depth == 0:
        return source.choice(simple)
    kind = source.randrange(6)
    if kind == 0:
        return source.choice(simple)
    if kind == 1:
        least = source.randrange(0, 3)
        return {
            "type": "array",
            "items": random_schema(source, depth - 1),
            "minItems": least,
            "maxItems": least + source.randrange(3),
        }
    if kind == 2:
        return {"anyOf": [random_schema(source, depth - 1) for _ in range(source.randrange(1, 4))], "title": "any"}
    names = source.sample(["id", "name", "größe", "a b", 'q"', "x", "list", "日本", "x-y"], source.randrange(1, 6))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(source, depth - 1) for name in names},
    }
    schema["required"] = source.sample(names, source.randrange(len(names) + 1))
    if kind == 4:
        schema["additionalProperties"] = source.choice([False, True, {"type": "integer"}])
    if kind == 5:
        return {"allOf": [schema, {"required": names[:1], "minProperties": 1}]}
    return schema


@pytest.mark.parametrize("seed", range(80))
def test_random_schemas(texts_of: Texts, seed: int) -> None:
    source = random.Random(seed)
    schema = random_schema(source, 3)
    if isinstance(schema, dict):
        schema["$defs"] = {
            "leaf": {"type": "object", "properties": {"leaf": {"$ref": "#/$defs/leaf"}, "n": {"type": "null"}}}
        }
    whitespace = source.choice(["compact", "bounded", "any"])
    for text in texts_of(schema, whitespace=whitespace, strict=source.random() < 0.7, count=2):
        validate(schema, text)


@pytest.mark.parametrize(
    ("whitespace", "allowed", "refused"),
    [
        (
            "compact",
            ['{"a": 1, "b": 2}'],
            ['{"a":1, "b": 2}', '{"a": 1, "b": 2} ', '{ "a": 1, "b": 2}', '{"a": 1,  "b": 2}'],
        ),
        ("bounded", ['{"a": 1,"b":2}', '{\n  "a": 1,\n  "b": 2\n}'], ['{"a":  1,"b":2}', '{\n\n"a":1,"b":2}']),
        ("any", ['{"a": 1,"b":2}', '{ \n\n\t "a"\n:  1,"b":2}'], ['{"a":1 "b":2}']),
    ],
)
def test_whitespace(writer: Any, whitespace: Any, allowed: list[str], refused: list[str]) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }
    grammar = writer.compile(schema_grammar(schema, whitespace, strict=True))
    for text, expected in [*((text, True) for text in allowed), *((text, False) for text in refused)]:
        matcher = xgrammar.GrammarMatcher(grammar)
        assert (matcher.accept_string(text) and matcher.is_completed()) is expected, text
