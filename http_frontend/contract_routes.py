"""GET /v1/contract: what this server does with every field."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from http_frontend.contract.document import contract_json, contract_markdown
from http_frontend.contract.kinds import refuse
from http_frontend.front import front_of

STATE_TIMEOUT_S = 2.0


async def contract(request: Request) -> Response:
    front = front_of(request)
    form = request.query_params.get("format", "json")
    if form == "markdown":
        return Response(contract_markdown(front.config), media_type="text/markdown; charset=utf-8")
    if form != "json":
        refuse("format", "must be json or markdown")
    replies, _ = await front.questions.ask_all("state", {}, ("tokenizer",), STATE_TIMEOUT_S)
    said = next((reply.payload for reply in replies if reply.role == "tokenizer"), {})
    template = {name: value for name, value in said.items() if name.startswith("template")}
    return JSONResponse(contract_json(front.config, template))
