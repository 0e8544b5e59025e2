import json
from typing import Any

import pytest

from protocol.sampling import GrammarSpec
from scheduler.grammar.schema.errors import GrammarRefused
from scheduler.grammar.source import GrammarSource
from scheduler.grammar.source import grammar_source as source_with_tokens

TOKENS = {"<call>": 7, "<end>": 8}


def grammar_source(spec: GrammarSpec) -> GrammarSource:
    return source_with_tokens(spec, TOKENS.get)


POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
OLD = {"structures": [{"begin": "<f>", "schema": POINT, "end": "</f>"}], "triggers": ["<f"]}
NEW = {
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": POINT}, "end": "</f>"},
}


@pytest.mark.parametrize("tag", [OLD, NEW])
def test_schemas_in_structural_tags_become_grammars_of_ours(tag: Any) -> None:
    source = grammar_source(GrammarSpec("structural_tag", json.dumps(tag)))
    assert source.form == "structural_tag"
    assert "json_schema" not in source.text
    assert "root ::=" in source.text


@pytest.mark.parametrize("style", ["json", "qwen_xml"])
def test_a_structural_tag_promises_no_more_than_a_schema(style: str) -> None:
    content = {"type": "json_schema", "style": style, "json_schema": {"properties": {"a": {"not": {}}}}}
    with pytest.raises(GrammarRefused, match=r"'not' at \$.properties.a"):
        grammar_source(
            GrammarSpec("structural_tag", json.dumps({"format": {"type": "sequence", "elements": [content]}}))
        )


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("json_schema", "{", "not JSON"),
        ("json_schema", "3", "object or a boolean"),
        ("json_schema", "[" * 100_000, "too deeply"),
        ("json_schema", json.dumps({"a": 1}).replace("a", "a\0"), "NUL"),
        ("choice", "[]", "list of strings"),
        ("choice", '["a", 1]', "list of strings"),
        ("regex", "(?=a)", "look-around"),
        ("structural_tag", "[]", "object"),
        ("structural_tag", "{}", "format"),
        ("structural_tag", '{"structures": [], "triggers": []}', "at least one"),
        ("structural_tag", '{"structures": [{"begin": "a"}], "triggers": ["a"]}', "begin"),
    ],
)
def test_refusals(kind: Any, text: str, why: str) -> None:
    with pytest.raises(GrammarRefused, match=why):
        grammar_source(GrammarSpec(kind, text))


def test_choices_may_hold_anything() -> None:
    assert grammar_source(GrammarSpec("choice", '["yes", "a\\"\\n"]')).text == 'root ::= ("yes" | "a\\u0022\\u000a")\n'


@pytest.mark.parametrize(("text", "form"), [('root ::= "a"', "ebnf"), ('start: "a"', "lark")])
def test_two_ways_to_write_grammars(text: str, form: str) -> None:
    assert grammar_source(GrammarSpec("ebnf", text)).form == form


def test_tokens_are_named_by_their_ids() -> None:
    dispatch = {"type": "token_dispatch", "rules": [["<call>", {"type": "any_text"}]], "exclude_tokens": ["<end>", 3]}
    tag = {"type": "tag", "begin": {"type": "token", "token": "<call>"}, "content": dispatch, "end": ""}
    source = grammar_source(GrammarSpec("structural_tag", json.dumps({"format": tag})))
    form = json.loads(source.text)["format"]
    assert form["begin"] == {"type": "token", "token": 7}
    assert form["content"]["rules"][0][0] == 7
    assert form["content"]["exclude_tokens"] == [8, 3]
    with pytest.raises(GrammarRefused, match="no token"):
        grammar_source(GrammarSpec("structural_tag", '{"format": {"type": "token", "token": "<x>"}}'))
