"""`tool_choice` as a constraint on the text, in the model's own format.

`required` is one or more calls and nothing else, a named tool exactly one call of it, `parallel_tool_calls: false` at most
one. Under `auto` text is free until a call begins; from there it is bound to the schemas of strict tools. The constraint
begins after reasoning: the scheduler sees to that.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from function_call.formats.json_array import JSON_ARRAY
from function_call.machinery.format import ToolFormat
from function_call.machinery.wire import Wire
from function_call.token_markers import with_token_markers
from function_call.tool_request import ToolRequest
from function_call.wire_arguments import Inexpressible, arguments_format
from protocol.requests import Adjustment
from protocol.sampling import GrammarSpec

Format = dict[str, Any]
PYTHON_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
ANY_OBJECT: Mapping[str, Any] = {"type": "object", "additionalProperties": True}


@dataclass(frozen=True)
class ToolConstraint:
    """`grammar` is None if nothing needs to be enforced, or can be. The answer must be read with `tool_format`, which is the
    generic array where the model's own format can't be constrained."""

    grammar: GrammarSpec | None
    tool_format: ToolFormat | None
    adjustments: tuple[Adjustment, ...] = ()


def tool_constraint(
    tool_format: ToolFormat | None,
    request: ToolRequest,
    *,
    after_reasoning: bool = False,
    token_markers: Collection[str] = (),
) -> ToolConstraint:
    """The constraint of a request. `after_reasoning`: the model reasons, so newlines may stand before the first call.
    `token_markers`: those of the format's markers that are one token each in the model's vocabulary."""
    if request.mode == "none" or not request.callable:
        return ToolConstraint(None, tool_format)
    if request.mode == "auto":
        return _auto(tool_format, request)
    for candidate in (tool_format, JSON_ARRAY):
        if candidate is None or candidate.wire is None:
            continue
        try:
            form = _required(candidate.wire, request)
        except Inexpressible:
            continue
        form = with_token_markers(form, token_markers)
        if after_reasoning:
            form = _sequence([{"type": "regex", "pattern": "\\n{0,2}"}, form])
        field = "function_call" if request.legacy else "tool_choice"
        return ToolConstraint(_spec(form, field), candidate)
    raise AssertionError("the generic array can express every schema")


def _required(wire: Wire, request: ToolRequest) -> Format:
    one = wire.single or not request.parallel or request.named is not None
    leads: list[Format] = [{"type": "optional", "content": _text(lead)} for lead in wire.leads]
    calls = _calls(wire, request, one, dict.fromkeys(request.callable, True))
    return _sequence([*leads, _text(wire.open), calls, _text(wire.close)])


def _auto(tool_format: ToolFormat | None, request: ToolRequest) -> ToolConstraint:
    """Free text, and calls as the strict tools and `parallel_tool_calls` want them.

    Tools that are not allowed, or not strict, differ: the former can't be called, the latter take any object.
    """
    strict = {name: request.strict(name) for name in request.callable}
    limited = len(request.callable) < len(request.tools)
    wanted = [
        Adjustment(field, "ignored", "")
        for field, needed in (
            ("tools", any(strict.values())),
            ("parallel_tool_calls", not request.parallel and not request.legacy),
            ("tool_choice", limited),
        )
        if needed
    ]
    if tool_format is None or not wanted:
        return ToolConstraint(None, tool_format)
    wire = tool_format.wire
    reason = f"under tool_choice auto nothing in {tool_format.name} announces a call, so calls can't be constrained"
    if wire is None or not wire.trigger:
        return ToolConstraint(None, tool_format, tuple(Adjustment(a.field, a.action, reason) for a in wanted))
    try:
        return ToolConstraint(_spec(_triggered(wire, request, strict), "tools"), tool_format)
    except Inexpressible as error:
        return ToolConstraint(None, tool_format, tuple(Adjustment(a.field, a.action, str(error)) for a in wanted))


def _triggered(wire: Wire, request: ToolRequest, strict: Mapping[str, bool]) -> Format:
    one = wire.single or not request.parallel
    if wire.trigger in wire.open:
        opening = wire.open[wire.open.index(wire.trigger) :]
        tags = [_tag(opening, _calls(wire, request, one, strict), wire.close)]
    else:
        tags = list(_tags(wire, request, strict))
    triggers = list(dict.fromkeys(wire.trigger.replace("{name}", name) for name in request.callable))
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, "stop_after_first": one}


def _calls(wire: Wire, request: ToolRequest, one: bool, strict: Mapping[str, bool]) -> Format:
    return {
        "type": "tags_with_separator",
        "tags": list(_tags(wire, request, strict)),
        "separator": wire.separator,
        "at_least_one": True,
        "stop_after_first": one,
    }


def _tags(wire: Wire, request: ToolRequest, strict: Mapping[str, bool]) -> Iterable[Format]:
    """One tag a tool. A tool that isn't strict is bound to its schema only where a call is required."""
    for name in request.callable:
        if wire.style == "python" and not PYTHON_NAME.fullmatch(name):
            raise Inexpressible(f"{name!r} can't be called in Python's notation")
        schema = {"type": "object", **request.schema(name)} if strict[name] else ANY_OBJECT
        arguments = arguments_format(wire, schema)
        begin, _, rest = wire.begin.replace("{name}", name).partition("{digits}")
        if rest:
            arguments = _sequence([{"type": "regex", "pattern": "[0-9]{1,4}"}, _text(rest), arguments])
        yield _tag(begin, arguments, wire.end)


def _tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _text(value: str) -> Format:
    return {"type": "const_string", "value": value}


def _sequence(elements: list[Format]) -> Format:
    """The elements in order, empty texts left out."""
    kept = [e for e in elements if e.get("value") != ""]
    return kept[0] if len(kept) == 1 else {"type": "sequence", "elements": kept}


def _spec(form: Format, field: str) -> GrammarSpec:
    text = json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)
    return GrammarSpec("structural_tag", text, field=field)
