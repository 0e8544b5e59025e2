"""Tools for templates that know nothing of them: declared in a system message, called and answered in tags.

The tags are those of the Hermes family, which the most models have seen and the `hermes` parser reads.
"""

import json
from typing import Any

from tokenizer_manager.template_inspection import TemplateTraits

_INTRODUCTION = (
    "# Tools\n\nYou may call functions to help with the user's request. "
    "Their signatures stand between <tools> and </tools>, one JSON object a line:\n<tools>\n"
)
_MANNER = (
    "\n</tools>\n\nTo call a function, write a JSON object with its name and its arguments between <tool_call> and "
    "</tool_call>, one such block for each call:\n"
    '<tool_call>\n{"name": <function name>, "arguments": <object of arguments>}\n</tool_call>'
)


def tool_declaration(tools: list[dict[str, Any]]) -> str:
    """What a system message says of the tools and of how to call them."""
    return _INTRODUCTION + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + _MANNER


def spell_out_calls(messages: list[dict[str, Any]], traits: TemplateTraits) -> list[dict[str, Any]] | None:
    """Tool calls and tool results as text of assistant and user messages, where the template can't render them.

    None if there was nothing to spell out. Results in a row become one user message, joined with a user message that
    follows: many templates insist that roles alternate.
    """
    spelled: list[dict[str, Any]] = []
    changed = False
    joinable = False
    for message in messages:
        if message.get("tool_calls") and not traits.renders_calls:
            changed = True
            message = {key: value for key, value in message.items() if key != "tool_calls"} | {
                "content": _join(message["content"], "\n".join(_call(call) for call in message["tool_calls"]))
            }
        if message["role"] in ("tool", "function") and not traits.renders_results:
            changed = True
            text = _join_parts(message["content"])
            message = {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
            if joinable:
                spelled[-1] = {**spelled[-1], "content": _join(spelled[-1]["content"], message["content"])}
                continue
            joinable = True
        elif joinable and message["role"] == "user":
            spelled[-1] = {**message, "content": _join(spelled[-1]["content"], message["content"])}
            joinable = False
            continue
        else:
            joinable = False
        spelled.append(message)
    return _in_parts(spelled, traits) if changed else None


def declare_in_system(messages: list[dict[str, Any]], declaration: str) -> list[dict[str, Any]]:
    """The declaration at the end of the first system message, or as one of its own."""
    if messages[0]["role"] == "system":
        return [{**messages[0], "content": _join(messages[0]["content"], declaration, "\n\n")}, *messages[1:]]
    return [{"role": "system", "content": declaration}, *messages]


def declare_in_user(messages: list[dict[str, Any]], declaration: str) -> list[dict[str, Any]]:
    """The declaration before the first user message: for templates that have no system role."""
    for index, message in enumerate(messages):
        if message["role"] == "user":
            fresh = {**message, "content": _join(declaration, message["content"], "\n\n")}
            return [*messages[:index], fresh, *messages[index + 1 :]]
    return [{"role": "user", "content": declaration}, *messages]


def _call(call: dict[str, Any]) -> str:
    function = call["function"]
    body = json.dumps({"name": function.get("name"), "arguments": function["arguments"]}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _join_parts(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""


def _join(first: Any, second: Any, separator: str = "\n") -> str:
    return separator.join(text for text in (_join_parts(first), _join_parts(second)) if text)


def _in_parts(messages: list[dict[str, Any]], traits: TemplateTraits) -> list[dict[str, Any]]:
    """Content that was joined here, in parts again for a template that reads nothing else."""
    if traits.takes_text:
        return messages
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message["content"], str)
        else message
        for message in messages
    ]
