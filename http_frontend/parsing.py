"""The parsers on their own: /parse_function_call and /separate_reasoning, under any parser's name."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from function_call.events import collect
from function_call.registry import UnknownParser
from function_call.stream import OutputParser
from http_frontend.contract.kinds import refuse
from http_frontend.contract.tokens import PARSE_FUNCTION_CALL, SEPARATE_REASONING
from http_frontend.front import front_of


async def parse_function_call(request: Request) -> Response:
    front = front_of(request)
    review = front.review(request)
    fields = PARSE_FUNCTION_CALL.check(await front.read(request, review), "", review)
    name = fields.get("tool_call_parser") or front.config.tool_call_parser
    if name is None:
        refuse("tool_call_parser", "is required: the server runs without one", "missing_required_parameter")
    try:
        tool_format = front.parsers.registry.tool_format(name)
    except UnknownParser as error:
        refuse("tool_call_parser", str(error))
    parser = OutputParser(None, tool_format, fields.get("tools"))
    whole = collect([*parser.feed(fields["text"]), *parser.finish("stop")])
    calls: list[dict[str, Any]] = [
        {"name": call.name, "arguments": call.arguments, "parameters": call.arguments, "tool_index": index}
        for index, call in enumerate(whole.calls)
    ]
    return JSONResponse({"normal_text": whole.content or "", "calls": calls})


async def separate_reasoning(request: Request) -> Response:
    front = front_of(request)
    review = front.review(request)
    fields = SEPARATE_REASONING.check(await front.read(request, review), "", review)
    name = fields.get("reasoning_parser") or front.config.reasoning_parser
    if name is None:
        refuse("reasoning_parser", "is required: the server runs without one", "missing_required_parameter")
    try:
        entry = front.parsers.registry.reasoning_format(name)
    except UnknownParser as error:
        refuse("reasoning_parser", str(error))
    parser = OutputParser(entry, None, prompt_opens_reasoning=fields.get("prompt_opens_think", False))
    whole = collect([*parser.feed(fields["text"]), *parser.finish("stop")])
    return JSONResponse({"reasoning_text": whole.reasoning or "", "text": whole.content or ""})
