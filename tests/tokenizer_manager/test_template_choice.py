"""Which template is in force, by flag, name and checkpoint; and what templates read."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tokenizer_manager.template_choice import TemplateChoiceError, TemplatesInForce
from tokenizer_manager.template_environment import make_environment
from tokenizer_manager.template_inspection import inspect_template

OWN = "{{ messages[0].content }}"


@pytest.fixture
def choose(tiny: Tokenizer, setup: Any) -> Any:
    def run(flag: str, own: Any = OWN, name: str = "tiny") -> TemplatesInForce:
        templates: TemplatesInForce = setup(tiny, own, name=name, chat_template=flag).renderer.templates
        return templates

    return run


@pytest.mark.parametrize(
    ("flag", "own", "name", "expected", "source"),
    [
        ("auto", OWN, "tiny", "checkpoint", "checkpoint"),
        ("auto", OWN, "x/vicuna-7b/", "vicuna_v1.1", "registry"),
        ("auto", OWN, "vicuna/tiny", "checkpoint", "checkpoint"),
        ("auto", OWN, "Llama-2-7b-chat", "checkpoint", "checkpoint"),
        ("auto", None, "Llama-2-7b-chat", "llama-2", "registry"),
        ("auto", None, "tiny", None, "none"),
        ("auto", {"default": OWN, "rag": "r"}, "tiny", "default", "checkpoint"),
        ("auto", {"default": OWN}, "tiny", "checkpoint", "checkpoint"),
        ("checkpoint", OWN, "vicuna", "checkpoint", "checkpoint"),
        ("chatml", OWN, "vicuna", "chatml", "flag"),
        ("rag", {"default": OWN, "rag": "r"}, "tiny", "rag", "flag"),
    ],
)
def test_the_order_of_sources(choose: Any, flag: str, own: Any, name: str, expected: str | None, source: str) -> None:
    chosen = choose(flag, own, name)
    assert (chosen.name, chosen.source) == (expected, source)
    assert chosen.shadowed == (source == "registry" and own is not None)


def test_files(choose: Any, tmp_path: Path) -> None:
    jinja = tmp_path / "my.jinja"
    jinja.write_text("{{ mood }}{{ messages }}")
    assert (choose(str(jinja)).name, choose(str(jinja)).reads) == ("my.jinja", ["messages", "mood"])
    conversation = tmp_path / "my.json"
    conversation.write_text(
        '{"name": "mine", "system": "SYS:", "system_message": "be good", "user": "U", "assistant": "A",'
        ' "sep_style": "ADD_COLON_SINGLE", "stop_str": "U:"}'
    )
    chosen = choose(str(conversation)).default
    assert (chosen.name, chosen.stop, chosen.system_template) == ("mine", ("U:",), "SYS:\n{system_message}")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"name": "x", "sep_style": "NONE"}'])
def test_a_broken_conversation_file(choose: Any, tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(TemplateChoiceError, match=r"x\.json"):
        choose(str(tmp_path / "x.json"))


@pytest.mark.parametrize(("flag", "own"), [("nonsense", OWN), ("checkpoint", None), ("auto", "{% if %}")])
def test_a_start_that_cannot_be(choose: Any, flag: str, own: Any) -> None:
    with pytest.raises(TemplateChoiceError):
        choose(flag, own)


@pytest.mark.parametrize(
    ("template", "parts", "text", "null"),
    [
        ("{{ m.content }}", False, True, False),
        ("{{ m['content'] | trim }}", False, True, False),
        ("{% for p in m.content %}{% endfor %}", True, False, False),
        ("{% for p in m['content'] | list %}{% endfor %}", True, False, False),
        ("{% set c = m.content %}{% for p in c %}{% endfor %}", True, False, False),
        ("{% if m.content is string %}{% else %}{% for p in m.content %}{% endfor %}{% endif %}", True, True, False),
        ("{% macro f(c) %}{% for p in c %}{% endfor %}{% endmacro %}{{ f(m.content) }}", True, False, False),
        ("{% macro f(c) %}{% for p in c %}{% endfor %}{% endmacro %}{{ f(c=m.content) }}", True, False, False),
        ("{% set c = m.get('content') %}{% for p in c %}{% endfor %}", True, False, False),
        ("{{ m.get('contents')[0].text }}", False, True, False),
        ("{{ m.content[0].text }}", True, False, False),
        ("{{ m['content'][0]['text'] }}", True, False, False),
        ("{{ m.content[0] }}", False, True, False),
        ("{% for line in m.content.split('x') %}{% endfor %}", False, True, False),
        ("{% if m.content is not none %}{% endif %}", False, True, True),
    ],
)
def test_what_a_template_reads_of_content(template: str, parts: bool, text: bool, null: bool) -> None:
    traits = inspect_template(make_environment(), template)
    assert (traits.takes_parts, traits.takes_text, traits.tests_null) == (parts, text, null)


def test_what_a_template_reads_of_variables() -> None:
    template = (
        "{{ a }}{% set b = 1 %}{{ b }}{% if c is defined %}{{ raise_exception('x') }}{{ strftime_now('') }}{% endif %}"
    )
    assert inspect_template(make_environment(), template).reads == {"a", "c"}
