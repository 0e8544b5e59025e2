"""Messages as a template wants them: content as text or parts, arguments as objects, roles that it knows."""

import json
from typing import Any

from protocol.errors import field_error
from protocol.requests import Adjustment
from tokenizer_manager.template_inspection import TemplateTraits

_REASONING_NAMES = ("thinking", "reasoning")


def normalise_messages(
    messages: list[dict[str, Any]], traits: TemplateTraits, part_separator: str = "\n"
) -> tuple[list[dict[str, Any]], list[Adjustment]]:
    """Fresh messages for a template of these traits, and what had to be changed.

    Keys whose value is null are dropped, save a null content that the template asks about. Parts that the template
    can't read are joined with `part_separator`.
    """
    if not messages:
        raise field_error("messages", "holds no message")
    adjustments: list[Adjustment] = []
    normalised = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str):
            raise field_error(f"messages[{index}].role", "is missing")
        fresh = {key: value for key, value in message.items() if value is not None}
        if role == "developer" and not traits.knows_developer:
            fresh["role"] = "system"
            adjustments.append(
                Adjustment(f"messages[{index}].role", "changed", "the template knows no developer role", value="system")
            )
        fresh["content"] = _content(message.get("content"), index, traits, part_separator)
        if fresh["content"] is None and not traits.tests_null:
            fresh["content"] = ""
        if message.get("tool_calls"):
            fresh["tool_calls"], malformed = _calls(message["tool_calls"], index)
            adjustments += malformed
        else:
            fresh.pop("tool_calls", None)
        _offer_reasoning(fresh, traits)
        normalised.append(fresh)
    return normalised, adjustments


def _content(content: Any, index: int, traits: TemplateTraits, separator: str) -> Any:
    if content is None:
        return None
    if isinstance(content, str):
        return content if traits.takes_text else [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise field_error(f"messages[{index}].content", "must be a string or a list of parts")
    texts = []
    for position, part in enumerate(content):
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            place = f"messages[{index}].content[{position}]"
            raise field_error(place, "this model takes text parts only", "unsupported_content")
        texts.append(text)
    if traits.takes_parts:
        return [{"type": "text", "text": text} for text in texts]
    return separator.join(texts)


def _calls(calls: list[dict[str, Any]], index: int) -> tuple[list[dict[str, Any]], list[Adjustment]]:
    """Tool calls with arguments as objects: templates print them in the model's own form."""
    adjustments = []
    result = []
    for position, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise field_error(f"messages[{index}].tool_calls[{position}]", "only function calls can be rendered")
        arguments = _arguments(function.get("arguments"))
        if arguments is None:
            # Kept in sight of the model rather than dropped: it wrote them, and may learn from the error that followed.
            arguments = {"malformed_arguments": function["arguments"]}
            adjustments.append(
                Adjustment(
                    f"messages[{index}].tool_calls[{position}].function.arguments",
                    "changed",
                    "the arguments are not a JSON object; the template was given them as malformed_arguments",
                )
            )
        result.append({**call, "function": {**function, "arguments": arguments}})
    return result, adjustments


def _arguments(arguments: Any) -> dict[str, Any] | None:
    """The arguments as an object; None if they are no JSON object."""
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or arguments == "":
        return {}
    try:
        value = json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        return None
    if "\\ud" in arguments.lower():
        # Half of a surrogate pair, from an answer that was cut in an escape, is no text that could be tokenised.
        text = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        value = json.loads(text)
    return value if isinstance(value, dict) else None


def _offer_reasoning(message: dict[str, Any], traits: TemplateTraits) -> None:
    """Templates read earlier reasoning under several names."""
    reasoning = message.get("reasoning_content")
    if reasoning is None:
        return
    for name in _REASONING_NAMES:
        if name not in message and (name in traits.attributes or name in traits.literals):
            message[name] = reasoning


def merge_system_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """All system messages as one at the start; None if that changes nothing (or content is in parts)."""
    systems = [message for message in messages if message["role"] == "system"]
    if not systems or (len(systems) == 1 and messages[0]["role"] == "system"):
        return None
    if not all(isinstance(message["content"], str) for message in systems):
        return None
    merged = {**systems[0], "content": "\n\n".join(message["content"] for message in systems)}
    return [merged, *(message for message in messages if message["role"] != "system")]
