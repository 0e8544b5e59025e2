"""Untrusted templates run where they can be killed."""

import pytest

from tokenizer_manager.template_child import render_in_child
from tokenizer_manager.template_environment import TemplateFailure

LIMIT_S = 60.0
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def test_an_honest_template_renders() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    variables = {"messages": [{"role": "assistant", "tool_calls": [call]}], "mood": "good"}
    text = render_in_child("{{ mood }} {{ messages[0].tool_calls[0].function.arguments }}", variables, 0.0, LIMIT_S)
    assert text == 'good {"a": 1}'


@pytest.mark.parametrize(
    ("template", "limit_s", "words"),
    [
        (LOOP, 1.0, "more than 1 seconds"),
        ("{{ 'a' * 100000000000 }}", LIMIT_S, "MemoryError|limits"),
        ("{{ 'a' * 20000000 }}", LIMIT_S, "characters"),
        ("{{ raise_exception('my words') }}", LIMIT_S, "my words"),
        ("{{ cycler.__init__.__globals__ }}", LIMIT_S, "unsafe"),
        ("{% if %}", LIMIT_S, "line 1"),
    ],
)
def test_a_hostile_template_fails(template: str, limit_s: float, words: str) -> None:
    with pytest.raises(TemplateFailure, match=words):
        render_in_child(template, {"messages": []}, 0.0, limit_s)
