"""The sandbox in which chat templates run, with the functions that templates of the hub expect (transformers' set)."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_ESCAPED_NONCHARACTER = re.compile(r"\\u(fd[de][0-9a-f])")


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; in a prompt it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (the attribute that Jinja reads)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class JsonArguments(dict[str, Any]):
    """Arguments of a tool call: a mapping for templates that walk it, JSON text for those that print or append it."""

    def __str__(self) -> str:
        return to_json(self)

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter of chat templates: no HTML escapes, unlike Jinja's own."""
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if ensure_ascii:
        # The marks of the control-token guard must come out as they went in.
        text = _ESCAPED_NONCHARACTER.sub(lambda found: chr(int(found.group(1), 16)), text)
    return text


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def make_environment() -> ImmutableSandboxedEnvironment:
    """An environment for chat templates. Null prints as nothing: a prompt never says "None"."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationBlock, jinja2.ext.loopcontrols],
        finalize=lambda value: "" if value is None else value,
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


class TemplateFailure(Exception):
    """A template refused its input or could not be rendered; the message is the template's own where it has one."""


def compile_template(environment: ImmutableSandboxedEnvironment, source: str) -> jinja2.Template:
    """The template; TemplateFailure with line number if it is no Jinja."""
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateFailure(f"{error.message} (line {error.lineno})") from error
    except RecursionError as error:
        raise TemplateFailure("the template is nested too deeply") from error


def render_template(template: jinja2.Template, variables: Mapping[str, Any], now_s: float) -> str:
    """The text; TemplateFailure for whatever goes wrong inside.

    `now_s` is what `strftime_now` shows: the request's arrival, so that a resumed request gets the same prompt.
    """

    def strftime_now(form: str) -> str:
        return datetime.fromtimestamp(now_s).strftime(form)

    messages = [_with_arguments(message) for message in variables.get("messages", ())]
    try:
        return template.render({**variables, "messages": messages, "strftime_now": strftime_now})
    except jinja2.TemplateError as error:
        raise TemplateFailure(error.message or type(error).__name__) from error
    except RecursionError as error:
        raise TemplateFailure("the conversation is nested too deeply") from error
    except Exception as error:  # a template is a program: whatever it raises is about this conversation
        raise TemplateFailure(f"{type(error).__name__}: {error}") from error


def _with_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """The message with tool-call arguments as `JsonArguments`."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    wrapped = []
    for call in calls:
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
            call = {**call, "function": {**function, "arguments": JsonArguments(function["arguments"])}}
        wrapped.append(call)
    return {**message, "tool_calls": wrapped}
