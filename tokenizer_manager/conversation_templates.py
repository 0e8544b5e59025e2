"""Conversation templates: prompts of models that have no Jinja template, or are better served by the classic form.

A template is a declaration; a style says how turns are joined. The forms are those of the FastChat heritage that users
ask for by name (see docs/chat-templates.md). Begin tokens are the tokenizer's business.
"""

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from protocol.errors import RequestError, field_error

Style = Literal[
    "ADD_COLON_SINGLE",
    "ADD_COLON_TWO",
    "ADD_COLON_SPACE_SINGLE",
    "ADD_NEW_LINE_SINGLE",
    "NO_COLON_SINGLE",
    "NO_COLON_TWO",
    "CHATML",
    "LLAMA2",
    "LLAMA3",
    "LLAMA4",
    "GEMMA3",
    "MPT",
    "DEEPSEEK_CHAT",
    "AFFIXES",
    "AFFIXES_LLAMA2",
]


class Affixes(msgspec.Struct, frozen=True):
    """What stands around the messages of each role (styles AFFIXES and AFFIXES_LLAMA2)."""

    system: tuple[str, str]
    user: tuple[str, str]
    assistant: tuple[str, str]


class ConversationTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A declaration.

    `separator` ends a turn, `separator_two` (where the style has two) an assistant's. `matches` is tried on the last
    component of the model's name and wins over the checkpoint's own template; `stands_in_for` is tried only where the
    checkpoint has none.
    """

    name: str
    style: Style
    roles: tuple[str, str] = ("", "")
    separator: str = ""
    separator_two: str | None = None
    system_template: str = "{system_message}"
    system_message: str | None = ""
    stop: tuple[str, ...] = ()
    affixes: Affixes | None = None
    matches: str | None = None
    stands_in_for: str | None = None

    def matches_name(self, model_name: str) -> bool:
        return self.matches is not None and re.search(self.matches, model_name, re.IGNORECASE) is not None

    def stands_in(self, model_name: str) -> bool:
        return self.stands_in_for is not None and re.search(self.stands_in_for, model_name, re.IGNORECASE) is not None


Turn = tuple[Literal["user", "assistant"], str | None]
"""A role and its text; None is the open turn that the model is to fill."""


def render_conversation(
    template: ConversationTemplate, messages: list[dict[str, Any]], *, open_turn: bool, continue_last: bool
) -> str:
    """The prompt. Messages have string content; roles other than system, user and assistant are a RequestError.

    `continue_last` leaves the last message open: nothing follows its text.
    """
    system, turns = _split(template, messages)
    if continue_last:
        return _continued(template, system, turns)
    if open_turn:
        turns.append(("assistant", None))
    return _STYLES[template.style](template, system, turns)


def _split(template: ConversationTemplate, messages: list[dict[str, Any]]) -> tuple[str | None, list[Turn]]:
    """The system message (several are joined; the default if there is none) and the turns."""
    systems: list[str] = []
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        role, text = message["role"], message.get("content") or ""
        if role == "system":
            systems.append(text)
        elif role in ("user", "assistant"):
            if message.get("tool_calls"):
                raise _cannot(template, "tool calls", index)
            turns.append((role, text))
        else:
            raise _cannot(template, f"messages of role {role!r}", index)
    return "\n\n".join(systems) if systems else template.system_message, turns


def _cannot(template: ConversationTemplate, what: str, index: int) -> RequestError:
    return field_error(
        f"messages[{index}]",
        f"the conversation template {template.name!r}, which is in force for this model, can't render {what}; "
        "start the server with --chat-template checkpoint or with a template that can",
        "chat_template_error",
    )


def _continued(template: ConversationTemplate, system: str | None, turns: list[Turn]) -> str:
    """The prompt up to the end of the last message's text: what the style puts after it is found and cut."""
    if not turns:
        raise field_error("messages", "there is no message to continue")
    role, text = turns[-1]
    end = "\ufdef\ufdee"
    rendered = _STYLES[template.style](template, system, [*turns[:-1], (role, (text or "") + end)])
    return rendered[: rendered.rindex(end)]


def _label(template: ConversationTemplate, role: str) -> str:
    return template.roles[0] if role == "user" else template.roles[1]


def _separator(template: ConversationTemplate, role: str) -> str:
    if role == "assistant" and template.separator_two is not None:
        return template.separator_two
    return template.separator


def _head(template: ConversationTemplate, system: str | None) -> str:
    return template.system_template.replace("{system_message}", system or "")


def _colon(after: str, open_after: str) -> Callable[[ConversationTemplate, str | None, list[Turn]], str]:
    """Styles of the form `R: M`; the system text is followed by the separator."""

    def render(template: ConversationTemplate, system: str | None, turns: list[Turn]) -> str:
        text = _head(template, system) + template.separator
        for role, message in turns:
            label = _label(template, role)
            text += label + open_after if message is None else label + after + message + _separator(template, role)
        return text

    return render


def _bare(template: ConversationTemplate, system: str | None, turns: list[Turn]) -> str:
    text = _head(template, system)
    for role, message in turns:
        text += _label(template, role) + ("" if message is None else message + _separator(template, role))
    return text


def _mpt(template: ConversationTemplate, system: str | None, turns: list[Turn]) -> str:
    text = _head(template, system) + template.separator
    for role, message in turns:
        text += _label(template, role) + ("" if message is None else message + template.separator)
    return text


def _lines(line_end: str) -> Callable[[ConversationTemplate, str | None, list[Turn]], str]:
    """Styles of the form `R`, newline, `M`, separator; no head at all where it is empty."""

    def render(template: ConversationTemplate, system: str | None, turns: list[Turn]) -> str:
        head = _head(template, system)
        text = head + template.separator + line_end if head else ""
        for role, message in turns:
            text += _label(template, role) + "\n"
            if message is not None:
                text += message + template.separator + line_end
        return text

    return render


def _llama2(template: ConversationTemplate, system: str | None, turns: list[Turn]) -> str:
    text = _head(template, system) if system else "[INST] "
    for index, (role, message) in enumerate(turns):
        label = _label(template, role)
        if message is None:
            text += label
        elif index == 0:
            text += message + " "
        else:
            text += label + " " + message + _separator(template, role)
    return text


def _headers(start: str, end: str, close: str) -> Callable[[ConversationTemplate, str | None, list[Turn]], str]:
    def render(template: ConversationTemplate, system: str | None, turns: list[Turn]) -> str:
        text = _head(template, system) if system else ""
        for role, message in turns:
            text += f"{start}{_label(template, role)}{end}\n\n"
            if message is not None:
                text += message.strip() + close
        return text

    return render


def _gemma3(template: ConversationTemplate, system: str | None, turns: list[Turn]) -> str:
    text = _head(template, system)
    for index, (role, message) in enumerate(turns):
        label = "" if index == 0 and message is not None else _label(template, role)
        text += label + ("" if message is None else message + template.separator)
    return text


def _deepseek_chat(template: ConversationTemplate, system: str | None, turns: list[Turn]) -> str:
    text = _head(template, system)
    for role, message in turns:
        label = _label(template, role) + ":"
        text += label if message is None else f"{label} {message}{_separator(template, role)}"
    return text


def _affixes(template: ConversationTemplate, system: str | None, turns: list[Turn]) -> str:
    assert template.affixes is not None
    affixes = template.affixes
    text = affixes.system[0] + system + affixes.system[1] if system is not None else ""
    inside_user = template.style == "AFFIXES_LLAMA2" and system is not None
    if inside_user:
        text = affixes.user[0] + text
    for role, message in turns:
        prefix, suffix = affixes.user if role == "user" else affixes.assistant
        if inside_user and role == "user":
            prefix, inside_user = "", False
        text += prefix if message is None else prefix + message + suffix
    return text


_STYLES: dict[Style, Callable[[ConversationTemplate, str | None, list[Turn]], str]] = {
    "ADD_COLON_SINGLE": _colon(": ", ":"),
    "ADD_COLON_TWO": _colon(": ", ":"),
    "ADD_COLON_SPACE_SINGLE": _colon(": ", ": "),
    "ADD_NEW_LINE_SINGLE": _lines(""),
    "NO_COLON_SINGLE": _bare,
    "NO_COLON_TWO": _bare,
    "CHATML": _lines("\n"),
    "LLAMA2": _llama2,
    "LLAMA3": _headers("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "LLAMA4": _headers("<|header_start|>", "<|header_end|>", "<|eot|>"),
    "GEMMA3": _gemma3,
    "MPT": _mpt,
    "DEEPSEEK_CHAT": _deepseek_chat,
    "AFFIXES": _affixes,
    "AFFIXES_LLAMA2": _affixes,
}
