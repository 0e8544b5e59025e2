"""What a chat's tools come to: what is rendered, what constrains the answer, what reads it."""

from dataclasses import dataclass
from typing import Any

from function_call.constraint import tool_constraint
from function_call.machinery.format import ToolFormat
from function_call.tool_request import ToolRequest, read_tool_request
from http_frontend.contract.review import Review
from http_frontend.parsers import Parsers
from protocol.errors import RequestError
from protocol.sampling import GrammarSpec

Fields = dict[str, Any]


@dataclass(frozen=True)
class ToolUse:
    """`rendered` go to the template, `grammar` binds the answer (the request's own constraint included), `tool_format`
    reads it. `custom` and `legacy` say how calls are written."""

    grammar: GrammarSpec | None
    rendered: list[dict[str, Any]] | None = None
    tool_format: ToolFormat | None = None
    custom: frozenset[str] = frozenset()
    legacy: bool = False
    forbids_calls: bool = False
    """The client wants no call: one that the model makes in the frames of its turn is left out with them."""


def tool_use_of(fields: Fields, grammar: GrammarSpec | None, parsers: Parsers, review: Review) -> ToolUse:
    """RequestError for tools and choices that can't be honoured; `grammar` is the request's own constraint."""
    request = _read(fields, review)
    if request is None:
        return ToolUse(grammar, tool_format=parsers.framing)
    review.take(request.adjustments)
    rendered: list[dict[str, Any]] | None = list(request.tools)
    if request.mode == "none":
        if review.config.args.exclude_tools_when_none:
            rendered = None
        return ToolUse(grammar, rendered, parsers.framing, forbids_calls=True)
    found = tool_constraint(
        parsers.tool_format,
        request,
        after_reasoning=parsers.reasoning is not None,
        token_markers=parsers.marker_tokens or (),
    )
    if grammar is not None:
        if request.mode == "required":
            raise RequestError(
                f"{grammar.field}: can't be combined with a tool_choice that requires a call",
                param=grammar.field,
                code="invalid_value",
            )
        review.tell("tools", "ignored", f"{grammar.field} binds the whole answer, so no tool can be called")
        return ToolUse(grammar, rendered, parsers.framing)
    review.take(found.adjustments)
    if found.tool_format is None:
        reason = "the server runs without --tool-call-parser: calls that the model makes come as content"
        review.tell("tools", "changed", reason)
    return ToolUse(found.grammar, rendered, found.tool_format, request.custom, request.legacy)


def _read(fields: Fields, review: Review) -> ToolRequest | None:
    if "tools" not in fields and "functions" not in fields:
        # Some clients always send these two; without tools they ask for nothing.
        if "parallel_tool_calls" in fields:
            review.tell("parallel_tool_calls", "ignored", "there are no tools", harmless=True)
        if fields.get("tool_choice") == "none" or fields.get("function_call") == "none":
            return None
    return read_tool_request(
        fields.get("tools"),
        fields.get("tool_choice"),
        fields.get("parallel_tool_calls"),
        fields.get("functions"),
        fields.get("function_call"),
    )
