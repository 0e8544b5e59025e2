"""Rendering by Jinja templates of the shapes that checkpoints ship, with transformers as the oracle where it can be one."""

import json
from datetime import datetime
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from protocol.errors import RequestError
from protocol.requests import ChatPrompt
from tokenizer_manager.chat_rendering import RenderedChat

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a city, <b>now</b> é",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Paris", "n": [1, null]}'},
}
PLAIN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Hi\n"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Bye"},
]
WITH_CALLS = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Look it up."},
    {"role": "tool", "tool_call_id": "c1", "content": "21 degrees"},
    {"role": "user", "content": "Thanks"},
]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HERMES = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content is string %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n' }}{% endif %}
        {{- content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
LLAMA = """\
{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start|>system<|end|>\\n\\nToday Date: " + date_string + "\\n\\n" + system_message + "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start|>' + message['role'] + '<|end|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception("This model only supports single tool-calls at once!") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start|>assistant<|end|>\\n\\n{"name": "' + tool_call.name + '", "parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}<|eot|>" }}
    {%- elif message.role == "tool" %}
        {{- "<|start|>ipython<|end|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant<|end|>\\n\\n' }}{%- endif %}
"""
MISTRAL = """\
{%- if messages[0]["role"] == "system" %}{%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- set ns = namespace(index=0) %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
    {%- if message["role"] == "user" %}
        {{- "[INST] " }}{%- if loop.last and system_message is defined %}{{- system_message + "\\n\\n" }}{%- endif %}
        {{- message["content"] + " [/INST]" }}
    {%- elif message["role"] == "system" %}{{- raise_exception("Only user and assistant roles are supported!") }}
    {%- else %}{% generation %}{{- " " + message["content"] | trim + eos_token }}{% endgeneration %}{%- endif %}
{%- endfor %}
"""
PARTS_ONLY = (
    "{% for m in messages %}{{ m.role }}:{% for part in m['content'] %}{% if part['type'] == 'text' %}"
    "{{ part['text'] }};{% endif %}{% endfor %}\n{% endfor %}"
)
BOTH = (
    "{% macro show(content) %}{% if content is string %}{{ content }}{% else %}{% for p in content %}[{{ p.text }}]"
    "{% endfor %}{% endif %}{% endmacro %}{% for m in messages %}{{ m.role }}:{{ show(m.content) }}\n{% endfor %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)


@pytest.fixture
def render(tiny: Tokenizer, setup: Any) -> Any:
    def run(source: Any, messages: list[dict[str, Any]], now_s: float = 0.0, **prompt: Any) -> RenderedChat:
        flags = {
            name: prompt.pop(name)
            for name in ("name", "chat_template", "trust_request_chat_template")
            if name in prompt
        }
        rendered: RenderedChat = setup(tiny, source, **flags).renderer.render(ChatPrompt(messages, **prompt), now_s)
        return rendered

    return run


def changes(rendered: RenderedChat) -> list[tuple[str, str]]:
    return [(adjustment.field, adjustment.action) for adjustment in rendered.adjustments]


@pytest.mark.parametrize(
    ("template", "messages", "options"),
    [
        (CHATML, PLAIN, {}),
        (CHATML, PLAIN, {"add_generation_prompt": False}),
        (HERMES, PLAIN, {}),
        (HERMES, PLAIN, {"tools": TOOLS}),
        (HERMES, WITH_CALLS, {"tools": TOOLS}),
        (HERMES, PLAIN, {"template_kwargs": {"enable_thinking": False}}),
        (LLAMA, PLAIN, {"template_kwargs": {"date_string": "26 Jul 2024"}}),
        (LLAMA, WITH_CALLS, {"template_kwargs": {"date_string": "26 Jul 2024"}}),
        (MISTRAL, PLAIN, {}),
        (PARTS_ONLY, PARTS, {}),
        (BOTH, PARTS, {}),
        (BOTH, PLAIN, {}),
        (CHATML, PLAIN[:3], {"continue_final_message": True}),
        (HERMES, PLAIN[:3], {"continue_final_message": True}),
        (LLAMA, [*PLAIN[:2], {"role": "assistant", "content": "Well, "}], {"continue_final_message": True}),
        (MISTRAL, [*PLAIN[:2], {"role": "assistant", "content": "Well,\n "}], {"continue_final_message": True}),
    ],
)
def test_as_transformers_renders(
    tiny: Tokenizer, render: Any, template: str, messages: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    oracle = PreTrainedTokenizerFast(tokenizer_object=tiny, bos_token="<s>", eos_token="<|im_end|>")
    given = json.loads(json.dumps(messages))
    for message in given:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    rest = {name: value for name, value in options.items() if name != "template_kwargs"}
    rest.setdefault("add_generation_prompt", not rest.get("continue_final_message", False))
    expected = oracle.apply_chat_template(
        given, chat_template=template, tokenize=False, **rest, **options.get("template_kwargs", {})
    )
    rendered = render(template, messages, now_s=datetime.now().timestamp(), **options)
    assert rendered.plain_text == expected
    assert changes(rendered) == []


def test_text_becomes_a_part_for_a_template_that_reads_parts_only(render: Any) -> None:
    assert render(PARTS_ONLY, [{"role": "user", "content": "hi"}]).plain_text == "user:hi;"


def test_parts_are_joined_for_a_template_that_reads_text(render: Any) -> None:
    assert render(CHATML, PARTS, add_generation_prompt=False).plain_text == "<|im_start|>user\none\ntwo<|im_end|>\n"


def test_a_part_that_is_no_text_is_named(render: Any) -> None:
    with pytest.raises(RequestError) as refusal:
        render(CHATML, [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
    assert refusal.value.info.param == "messages[0].content[0]"


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
def test_null_is_never_written_out(render: Any, message: dict[str, Any]) -> None:
    for template in (
        CHATML,
        HERMES,
        BOTH,
        PARTS_ONLY,
        "{% for m in messages %}{{ m.content }}{{ m.name }}|{% endfor %}",
    ):
        assert "None" not in render(template, [message]).plain_text


def test_a_template_that_asks_for_null_gets_it(render: Any) -> None:
    template = (
        "{% for m in messages %}{% if m.content is none %}nothing{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert render(template, [{"role": "assistant", "content": None}]).plain_text == "nothing"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages[0].tool_calls[0].function.arguments }}", '{"city": "Paris", "n": [1, null]}'),
        (
            "{{ 'json\n' + messages[0].tool_calls[0].function.arguments + '!' }}",
            'json\n{"city": "Paris", "n": [1, null]}!',
        ),
        (
            "{% for k, v in messages[0].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }};{% endfor %}",
            "city=Paris;n=[1, None];",
        ),
    ],
)
def test_arguments_serve_templates_of_all_kinds(render: Any, template: str, expected: str) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert render(template, [message]).plain_text == expected


@pytest.mark.parametrize(
    ("arguments", "told"), [("", False), ("{}", False), ("{", True), ("[1]", True), ('"x"', True), ("[" * 9999, True)]
)
def test_malformed_arguments_are_tolerated_and_told(render: Any, arguments: str, told: bool) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    rendered = render(
        HERMES, [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    )
    field = "messages[1].tool_calls[0].function.arguments"
    assert changes(rendered) == ([(field, "changed")] if told else [])
    assert ("malformed_arguments" in rendered.plain_text) == told


def test_half_a_surrogate_in_arguments_becomes_a_replacement(tiny: Tokenizer, render: Any) -> None:
    arguments = '{"a": "\\ud83d \\ud83d\\ude00", "b": "c:\\\\ud800"}'
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    text = render(HERMES, messages).plain_text
    assert "\ufffd \U0001f600" in text and "c:\\\\ud800" in text
    assert tiny.encode(text).ids


def test_developer_is_system_where_the_template_knows_no_better(render: Any) -> None:
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    rendered = render(CHATML, messages)
    assert rendered.plain_text.startswith("<|im_start|>system\nBe brief.")
    assert changes(rendered) == [("messages[0].role", "changed")]
    knowing = CHATML + "{% if messages[0].role == 'developer' %}!{% endif %}"
    assert render(knowing, messages).plain_text.startswith("<|im_start|>developer\n")


def test_reasoning_is_offered_under_the_names_that_templates_read(render: Any) -> None:
    template = "{% for m in messages %}{{ m.thinking }}/{{ m['reasoning'] }}/{{ m.reasoning_content }}{% endfor %}"
    rendered = render(template, [{"role": "assistant", "content": "", "reasoning_content": "R"}])
    assert rendered.plain_text == "R/R/R"


def test_tools_are_declared_for_a_template_that_ignores_them(render: Any) -> None:
    rendered = render(CHATML, [PLAIN[0], *WITH_CALLS], tools=TOOLS)
    system, user, call, result = rendered.plain_text.split("<|im_end|>\n")[:4]
    assert system.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert json.dumps(TOOLS[0], ensure_ascii=False) in system
    assert user == "<|im_start|>user\nWeather?"
    assert call.startswith('<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"')
    assert result == "<|im_start|>user\n<tool_response>\n21 degrees\n</tool_response>\nThanks"
    assert changes(rendered) == [("messages", "changed"), ("tools", "changed")]


def test_tools_go_to_the_user_where_there_is_no_system_role(render: Any) -> None:
    rendered = render(NO_SYSTEM, [{"role": "user", "content": "Weather?"}], tools=TOOLS)
    assert rendered.plain_text.startswith("user: # Tools")
    assert rendered.plain_text.endswith("</tool_call>\n\nWeather?\n")


def test_system_messages_are_joined_for_a_template_that_takes_one(render: Any) -> None:
    messages = [PLAIN[0], PLAIN[1], {"role": "system", "content": "Be kind."}]
    rendered = render(MISTRAL, messages)
    assert "Be brief.\n\nBe kind.\n\n  Hi" in rendered.plain_text
    assert changes(rendered) == [("messages", "changed")]


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (MISTRAL, [PLAIN[1], PLAIN[1]], "roles must alternate"),
        (NO_SYSTEM, PLAIN, "System role not supported"),
        ("{{ messages[0].nothing.here }}", PLAIN, "nothing"),
        ("{{ 1 / 0 }}", PLAIN, "division"),
        ("{{ messages[0].content + 1 }}", PLAIN, "can only concatenate"),
        ("{{ ''.__class__.__mro__ }}", PLAIN, "unsafe"),
        ("{{ messages.append(1) }}", PLAIN, "unsafe"),
    ],
)
def test_a_template_error_is_a_400_in_its_words(
    render: Any, template: str, messages: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(RequestError, match=words) as refusal:
        render(template, messages)
    assert (refusal.value.info.status, refusal.value.info.code) == (400, "chat_template_error")


def test_unread_variables_and_documents_are_told(render: Any) -> None:
    rendered = render(
        HERMES, PLAIN, template_kwargs={"enable_thinking": True, "thinking": 1}, documents=[{"text": "x"}]
    )
    assert changes(rendered) == [("chat_template_kwargs.thinking", "ignored"), ("documents", "ignored")]


def test_the_present_time_is_the_requests_arrival(render: Any) -> None:
    now_s = datetime(2024, 7, 26, 12).timestamp()
    assert "Today Date: 26 Jul 2024\n" in render(LLAMA, PLAIN, now_s=now_s).plain_text


def test_nothing_to_continue(render: Any) -> None:
    with pytest.raises(RequestError, match="does not render"):
        render("{{ messages[0].content }}", PLAIN[:3], continue_final_message=True)
    with pytest.raises(RequestError):
        render(CHATML, [], continue_final_message=True)


def test_templates_for_tools(render: Any) -> None:
    both = {"default": CHATML, "tool_use": HERMES}
    assert "# Tools\n<tools>\n" in render(both, PLAIN, tools=TOOLS).plain_text
    assert render(both, PLAIN).template == "default"


def test_a_registry_match_is_told_and_refuses_tools(render: Any) -> None:
    rendered = render(CHATML, PLAIN, name="/models/org/vicuna-7b-v1.5")
    assert (rendered.template, rendered.source) == ("vicuna_v1.1", "registry")
    assert changes(rendered) == [("chat_template", "changed")]
    with pytest.raises(RequestError, match="can't render tools") as refusal:
        render(CHATML, PLAIN, name="vicuna", tools=TOOLS)
    assert refusal.value.info.param == "tools"
    assert render(CHATML, PLAIN, name="vicuna/checkpoint-9").source == "checkpoint"
    assert render(CHATML, PLAIN, name="vicuna", chat_template="checkpoint").source == "checkpoint"
    assert changes(render(None, PLAIN, name="vicuna")) == []


def test_without_any_template(render: Any) -> None:
    with pytest.raises(RequestError, match="no chat template") as refusal:
        render(None, PLAIN)
    assert refusal.value.info.status == 400


def test_a_request_brings_a_template(render: Any) -> None:
    with pytest.raises(RequestError, match="not accepted"):
        render(CHATML, PLAIN, template="x")
    trusted = {"trust_request_chat_template": True}
    rendered = render(CHATML, PLAIN, template="{{ messages[1].content | trim }}<|im_end|>", **trusted)
    assert (rendered.plain_text, rendered.source) == ("Hi<|im_end|>", "request")
    assert render(CHATML, PLAIN, template="vicuna_v1.1", **trusted).template == "vicuna_v1.1"
    for broken in ("{% if %}", "{{ " + "(" * 3000):
        with pytest.raises(RequestError) as refusal:
            render(CHATML, PLAIN, template=broken, **trusted)
        assert refusal.value.info.status == 400
