"""Whatever a template says, it renders or fails in words: no other exception gets out, and nothing is reached through it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer_manager.template_environment import TemplateFailure, compile_template, make_environment, render_template

PIECES = (
    "{{", "}}", "{%", "%}", "{#", "#}", " if ", " for x in ", " endfor ", " endif ", " set y = ", "messages", "x", "y",
    "[0]", "['role']", ".content", "|trim", "|tojson", "|length", "|map(attribute='role')|list", "+", "~", "1", "'a'",
    "loop.index", "raise_exception('no')", "strftime_now('%Y')", "namespace(a=1)", ".__class__", ".__init__", ".__globals__",
    "|attr('__class__')", "{% macro m() %}", "{% endmacro %}", "{{ m() }}", "{% include 'x' %}", "{% import 'os' as o %}",
    "{% generation %}", "{% endgeneration %}", "(", ")", "\n", "\x00", "\ud800",
)  # fmt: skip
MESSAGES = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": None, "tool_calls": []}]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=40))
def test_a_random_template_renders_or_fails_in_words(source: str) -> None:
    try:
        text = render_template(compile_template(make_environment(), source), {"messages": MESSAGES}, 0.0)
    except TemplateFailure as failure:
        assert str(failure)
    else:
        assert "class '" not in text and "built-in" not in text
