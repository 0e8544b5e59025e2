"""Messages as the tokenizer manager wants them, from everything that clients send."""

from typing import Any

import msgspec

from http_frontend.contract.kinds import refuse
from http_frontend.contract.review import Review

Message = dict[str, Any]


# field -> the role whose messages have it
BELONGS = {
    "function_call": "assistant",
    "reasoning_content": "assistant",
    "reasoning": "assistant",
    "refusal": "assistant",
    "prefix": "assistant",
    "tool_call_id": "tool",
}


def normalise_messages(messages: list[Message], review: Review) -> list[Message]:
    """Plain dicts of the shape that `protocol.requests.ChatPrompt` describes; RequestError naming the message at fault."""
    legacy_ids: dict[str, str] = {}
    for position, message in enumerate(messages):
        _tell_unread(message, f"messages[{position}]", position == len(messages) - 1, review)
    return [
        _normalise(message, f"messages[{position}]", position, legacy_ids) for position, message in enumerate(messages)
    ]


def _tell_unread(message: Message, path: str, is_last: bool, review: Review) -> None:
    """Fields that say nothing where they stand."""
    for name, role in BELONGS.items():
        if not message.get(name):
            continue
        if message["role"] != role:
            review.tell(f"{path}.{name}", "ignored", f"only messages of the role {role} have one")
        elif name == "prefix" and not is_last:
            review.tell(f"{path}.{name}", "ignored", "only the last message can be continued")
        elif name == "refusal" and message.get("content") is not None:
            review.tell(f"{path}.{name}", "ignored", "the content stands in its place")
        elif name == "reasoning" and message.get("reasoning_content", message[name]) != message[name]:
            review.tell(f"{path}.{name}", "ignored", "reasoning_content wins")


def _normalise(message: Message, path: str, position: int, legacy_ids: dict[str, str]) -> Message:
    role = message["role"]
    normal: Message = {"role": role}
    content, thinking = _normalise_content(message.get("content"), role, f"{path}.content")
    if content is None and role in ("system", "developer", "user"):
        refuse(f"{path}.content", "is required for this role", "missing_required_parameter")
    normal["content"] = content
    if "name" in message:
        normal["name"] = message["name"]
    if role == "assistant":
        _add_assistant_fields(normal, message, path, position, legacy_ids)
        reasoning = message.get("reasoning_content", message.get("reasoning", thinking))
        if reasoning:
            normal["reasoning_content"] = reasoning
    elif message.get("tool_calls"):
        refuse(f"{path}.tool_calls", "only an assistant message has tool calls")
    if role == "tool":
        normal["content"] = "" if content is None else content
        normal["tool_call_id"] = message.get("tool_call_id", "")
    elif role == "function":
        # The older form: results are matched by name, since calls had no id.
        name = message.get("name")
        if name is None:
            refuse(f"{path}.name", "is required for this role", "missing_required_parameter")
        normal |= {
            "role": "tool",
            "content": "" if content is None else content,
            "tool_call_id": legacy_ids.get(name, ""),
        }
    return normal


def _add_assistant_fields(
    normal: Message, message: Message, path: str, position: int, legacy_ids: dict[str, str]
) -> None:
    calls = [
        _normalise_call(call, f"{path}.tool_calls[{number}]", f"call_{position}_{number}")
        for number, call in enumerate(message.get("tool_calls", ()))
    ]
    if "function_call" in message:
        called = message["function_call"]
        made_up = legacy_ids[called["name"]] = f"call_{position}"
        calls.append(_call(made_up, called["name"], _arguments(called, f"{path}.function_call")))
    if calls:
        normal["tool_calls"] = calls
    if normal["content"] is None and "refusal" in message:
        normal["content"] = message["refusal"]
    if normal["content"] is None and not calls:
        normal["content"] = ""


def _normalise_call(call: Message, path: str, made_up: str) -> Message:
    if "custom" in call:
        # A custom tool's input is free text; templates know functions only.
        arguments = msgspec.json.encode({"input": call["custom"].get("input", "")}).decode()
        return _call(call.get("id") or made_up, call["custom"]["name"], arguments)
    if "function" not in call:
        refuse(f"{path}.function", "is required", "missing_required_parameter")
    return _call(call.get("id") or made_up, call["function"]["name"], _arguments(call["function"], f"{path}.function"))


def _call(call_id: str, name: str, arguments: str) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(called: Message, path: str) -> str:
    """The arguments as text. What is no JSON is passed on (the model wrote it, not the client); the tokenizer manager tells."""
    given = called.get("arguments", "{}")
    if isinstance(given, dict):
        return msgspec.json.encode(given).decode()
    if not isinstance(given, str):
        refuse(f"{path}.arguments", "must be a string of JSON or an object", "invalid_type")
    return given


def prediction_text(fields: Message) -> str:
    """What the answer is expected to be, in the words of `prediction`."""
    content: str | list[Message] = fields["prediction"]["content"] if "prediction" in fields else ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _normalise_content(content: Any, role: str, path: str) -> tuple[Any, str | None]:
    """(None, text, or text parts; thinking found among the parts)."""
    if content is None or isinstance(content, str):
        return content, None
    parts: list[Message] = []
    thinking: list[str] = []
    for position, part in enumerate(content):
        kind, here = part["type"], f"{path}[{position}]"
        if kind in ("text", "input_text", "output_text"):
            if "text" not in part:
                refuse(f"{here}.text", "is required for this type", "missing_required_parameter")
            parts.append({"type": "text", "text": part["text"]})
        elif kind == "refusal":
            parts.append({"type": "text", "text": part.get("refusal", "")})
        elif kind in ("thinking", "reasoning") and role == "assistant":
            thinking.append(part.get("thinking") or part.get("text", ""))
        else:
            refuse(here, f"parts of type {kind!r} are not taken: this server has text models only", "unsupported_value")
    return parts, "".join(thinking) or None
