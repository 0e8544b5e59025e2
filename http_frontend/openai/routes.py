"""The routes of OpenAI's API that generate or list."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from http_frontend.contract.chat import CHAT
from http_frontend.contract.completions import COMPLETIONS
from http_frontend.front import front_of
from http_frontend.generation import Generation
from http_frontend.openai.chat import build_chat
from http_frontend.openai.completions import build_completions


async def chat_completions(request: Request) -> Response:
    front = front_of(request)
    call = await front.accept(request, CHAT)
    generate, form = build_chat(front, call)
    stream = call.fields.get("stream", False)
    return Generation(front.in_flight, [generate], form, call.review, stream, call.headers)


async def completions(request: Request) -> Response:
    front = front_of(request)
    call = await front.accept(request, COMPLETIONS)
    requests, form = await build_completions(front, call)
    return Generation(front.in_flight, requests, form, call.review, call.fields.get("stream", False), call.headers)


async def list_models(request: Request) -> Response:
    models = front_of(request).models
    return JSONResponse({"object": "list", "data": [models.card(name) for name in models.names]})


async def show_model(request: Request) -> Response:
    models = front_of(request).models
    name = request.path_params["name"]
    if name not in models.names:
        raise models.unknown(name)
    return JSONResponse(models.card(name))
