"""`tools`, `tool_choice` and their legacy forms, checked and brought into one form."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from function_call.schema_check import SchemaCheck, SchemaFault
from protocol.errors import RequestError
from protocol.requests import Adjustment

TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/\-]{1,128}")
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
Tool = dict[str, Any]


@dataclass(frozen=True)
class ToolRequest:
    """What a request says of tools.

    `tools` are OpenAI function tools (legacy functions and custom tools among them) for the template and the parser.
    `callable` names those that may be called; `mode` "required" means one or more of them, `parallel` off at most one,
    `named` exactly that one. `custom` names the tools whose arguments are `{"input": text}`. `legacy`: the answer speaks of
    `function_call`, not `tool_calls`.
    """

    tools: tuple[Tool, ...]
    mode: Literal["none", "auto", "required"] = "auto"
    callable: tuple[str, ...] = ()
    named: str | None = None
    parallel: bool = True
    custom: frozenset[str] = frozenset()
    legacy: bool = False
    adjustments: tuple[Adjustment, ...] = field(default=())

    def schema(self, name: str) -> dict[str, Any]:
        """The parameter schema of a tool; an empty closed object if it declares none."""
        for tool in self.tools:
            if tool["function"]["name"] == name:
                return dict(tool["function"].get("parameters") or NO_PARAMETERS)
        raise KeyError(name)

    def strict(self, name: str) -> bool:
        return any(tool["function"]["name"] == name and bool(tool["function"].get("strict")) for tool in self.tools)


def read_tool_request(
    tools: Any = None,
    tool_choice: Any = None,
    parallel_tool_calls: bool | None = None,
    functions: Any = None,
    function_call: Any = None,
) -> ToolRequest | None:
    """None if the request has no tools. RequestError, with the place, for whatever can't be honoured."""
    legacy = functions is not None
    if legacy:
        if tools is not None:
            raise _refused("functions", "can't be given together with tools")
        if tool_choice is not None:
            raise _refused("tool_choice", "is only allowed when tools are given")
        field_name, choice_name, choice = "functions", "function_call", function_call
        tools = _legacy_tools(functions)
    else:
        field_name, choice_name, choice = "tools", "tool_choice", tool_choice
        if function_call is not None:
            raise _refused("function_call", "is only allowed when functions are given")
    if tools is None:
        if choice is not None:
            raise _refused(choice_name, f"is only allowed when {field_name} are given")
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, str) or not tools:
        raise _refused(field_name, "must be a list of at least one tool; leave the field out to have none")
    adjustments: list[Adjustment] = []
    custom: set[str] = set()
    schemas = SchemaCheck()
    read = tuple(
        _tool(tool, f"{field_name}[{i}]", legacy, custom, adjustments, schemas) for i, tool in enumerate(tools)
    )
    names = [tool["function"]["name"] for tool in read]
    for i, name in enumerate(names):
        if name in names[:i]:
            inner = "name" if legacy else f"{'custom' if name in custom else 'function'}.name"
            raise _refused(f"{field_name}[{i}].{inner}", f"{name!r} is the name of an earlier tool too")
    mode, allowed, named = _choice(choice, choice_name, names, legacy)
    return ToolRequest(
        tools=read,
        mode=mode,
        callable=allowed,
        named=named,
        parallel=parallel_tool_calls is not False and not legacy,
        custom=frozenset(custom),
        legacy=legacy,
        adjustments=tuple(adjustments),
    )


def _refused(param: str, what: str, code: str = "invalid_value") -> RequestError:
    return RequestError(f"{param} {what}", param=param, code=code)


def _legacy_tools(functions: Any) -> list[Tool]:
    if not isinstance(functions, Sequence) or isinstance(functions, str):
        raise _refused("functions", "must be a list")
    return [{"type": "function", "function": function} for function in functions]


def _tool(
    tool: Any, place: str, legacy: bool, custom: set[str], adjustments: list[Adjustment], schemas: SchemaCheck
) -> Tool:
    if not isinstance(tool, Mapping):
        raise _refused(place, "must be an object")
    kind = tool.get("type", "function")
    if kind == "custom":
        name, made = _custom(tool.get("custom", tool), f"{place}.custom", adjustments)
        custom.add(name)
        return {"type": "function", "function": made}
    if kind != "function":
        raise _refused(
            f"{place}.type", f"{kind!r} is not supported; there are function and custom", "unsupported_value"
        )
    function = tool.get("function")
    inner = place if legacy else f"{place}.function"
    if not isinstance(function, Mapping):
        raise _refused(inner, "must be an object", "missing_required_parameter")
    _name(function.get("name"), f"{inner}.name")
    parameters = function.get("parameters")
    if parameters is not None:
        _check_schema(schemas, parameters, f"{inner}.parameters")
    return {"type": "function", "function": dict(function)}


def _name(name: Any, place: str) -> str:
    if not isinstance(name, str) or not name:
        raise _refused(place, "must be a text that is not empty", "missing_required_parameter")
    if not TOOL_NAME.fullmatch(name):
        raise _refused(place, f"{name[:80]!r} must be 1 to 128 letters, digits and _ - . : /")
    return name


def _check_schema(schemas: SchemaCheck, schema: Any, place: str) -> None:
    if not isinstance(schema, Mapping):
        raise _refused(place, "must be a JSON schema, an object", "invalid_function_parameters")
    kind = schema.get("type", "object")
    if kind != "object":
        raise _refused(place, f"must describe an object, not {kind!r}", "invalid_function_parameters")
    try:
        schemas.check(schema, place)
    except SchemaFault as fault:
        raise _refused(place, str(fault), "invalid_function_parameters") from None
    except RecursionError:
        raise _refused(place, "is nested too deeply", "invalid_function_parameters") from None


def _custom(tool: Any, place: str, adjustments: list[Adjustment]) -> tuple[str, Tool]:
    """A custom tool as a function with one text parameter. A regular expression constrains it; a Lark grammar can't, inside JSON."""
    if not isinstance(tool, Mapping):
        raise _refused(place, "must be an object", "missing_required_parameter")
    name = _name(tool.get("name"), f"{place}.name")
    text: dict[str, Any] = {"type": "string"}
    form: Any = tool.get("format") or {"type": "text"}
    kind = form.get("type") if isinstance(form, Mapping) else None
    if kind == "grammar":
        grammar = form.get("grammar", form)
        syntax, definition = (
            (grammar.get("syntax"), grammar.get("definition")) if isinstance(grammar, Mapping) else (None, None)
        )
        if syntax not in ("lark", "regex") or not isinstance(definition, str):
            raise _refused(f"{place}.format.grammar", "must have a syntax (lark or regex) and a definition")
        if syntax == "regex":
            # The whole input must match; a schema's pattern is content to be found somewhere.
            text["pattern"] = f"^(?:{definition})$"
        else:
            text["description"] = f"Must follow this Lark grammar:\n{definition}"
            reason = "a Lark grammar is shown to the model but not enforced: custom calls travel as JSON"
            adjustments.append(Adjustment(f"{place}.format.grammar", "changed", reason))
    elif kind != "text":
        raise _refused(f"{place}.format.type", "must be text or grammar")
    function: Tool = {
        "name": name,
        "parameters": {**NO_PARAMETERS, "properties": {"input": text}, "required": ["input"]},
    }
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    return name, function


def _choice(
    choice: Any, place: str, names: list[str], legacy: bool
) -> tuple[Literal["none", "auto", "required"], tuple[str, ...], str | None]:
    everything = tuple(names)
    match choice:
        case None | "auto":
            return "auto", everything, None
        case "none":
            return "none", (), None
        case "required" if not legacy:
            return "required", everything, None
        case {"name": str(name)} if legacy:
            return "required", (_known(name, names, f"{place}.name"),), name
        case {"type": "function", "function": {"name": str(name)}} if not legacy:
            return "required", (_known(name, names, f"{place}.function.name"),), name
        case {"type": "custom", "custom": {"name": str(name)}} if not legacy:
            return "required", (_known(name, names, f"{place}.custom.name"),), name
        case {"type": "function" | "custom", "name": str(name)} if not legacy:
            return "required", (_known(name, names, f"{place}.name"),), name
        case {"type": "allowed_tools"} if not legacy:
            inner = choice.get("allowed_tools", choice)
            path = f"{place}.allowed_tools" if "allowed_tools" in choice else place
            return _allowed(inner, path, names)
    kinds = "none, auto or {name}" if legacy else "none, auto, required, a named tool or allowed_tools"
    raise _refused(place, f"must be {kinds}")


def _allowed(inner: Any, place: str, names: list[str]) -> tuple[Literal["auto", "required"], tuple[str, ...], None]:
    mode = inner.get("mode", "auto") if isinstance(inner, Mapping) else None
    if mode not in ("auto", "required"):
        raise _refused(f"{place}.mode", "must be auto or required")
    tools = inner.get("tools")
    if not isinstance(tools, Sequence) or isinstance(tools, str) or not tools:
        raise _refused(f"{place}.tools", "must be a list of at least one tool")
    allowed = []
    for i, tool in enumerate(tools):
        match tool:
            case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}} | {"name": str(name)}:
                allowed.append(_known(name, names, f"{place}.tools[{i}]"))
            case _:
                raise _refused(f"{place}.tools[{i}]", "must name a tool")
    return ("required" if mode == "required" else "auto"), tuple(dict.fromkeys(allowed)), None


def _known(name: str, names: list[str], place: str) -> str:
    if name not in names:
        raise _refused(place, f"names {name!r}, which is not among the tools")
    return name
