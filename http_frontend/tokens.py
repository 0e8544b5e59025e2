"""Tokenize, detokenize and render: what the tokenizer manager answers itself; nothing is generated."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from function_call.tool_request import read_tool_request
from http_frontend.contract.chat import CHAT
from http_frontend.contract.completions import COMPLETIONS
from http_frontend.contract.kinds import refuse
from http_frontend.contract.review import Review
from http_frontend.contract.tokens import DETOKENIZE, TOKENIZE
from http_frontend.front import Front, front_of
from http_frontend.openai.chat import build_chat, chat_prompt
from http_frontend.openai.completions import build_completions
from http_frontend.openai.messages import normalise_messages
from protocol.ids import pack_ids, unpack_ids
from protocol.outputs import Rendered, Tokenized
from protocol.requests import DetokenizeRequest, GenerateRequest, Prompt, RenderRequest, TextPrompt, TokenizeRequest

PEEK_TIMEOUT_S = 2.0


def _answer(body: dict[str, Any], review: Review) -> Response:
    told = review.header()
    headers = {"x-candor-adjustments": told} if told else None
    return Response(msgspec.json.encode(body), headers=headers, media_type="application/json")


async def tokenize(request: Request) -> Response:
    front = front_of(request)
    review = front.review(request)
    fields = TOKENIZE.check(await front.read(request, review), "", review)
    _, model = front.models.resolve(fields.get("model"), review)
    given = [name for name in ("prompt", "text", "messages") if name in fields]
    if len(given) != 1:
        refuse("prompt", "give exactly one of prompt, text and messages", "missing_required_parameter")
    prompts: list[Prompt]
    if given == ["messages"]:
        tools = read_tool_request(fields.get("tools"))
        messages = normalise_messages(fields["messages"], review)
        prompts = [chat_prompt(front, fields, messages, None if tools is None else list(tools.tools), review)]
    else:
        value = fields[given[0]]
        texts = [value] if isinstance(value, str) else value
        prompts = [TextPrompt(text, fields.get("add_special_tokens", True)) for text in texts]
    answers = await asyncio.gather(*(_tokenize(front, model, prompt) for prompt in prompts))
    for answer in answers:
        review.take(answer.adjustments)
    single = given == ["messages"] or isinstance(fields[given[0]], str)
    tokens = [unpack_ids(answer.ids) for answer in answers]
    body: dict[str, Any] = {
        "count": len(tokens[0]) if single else [len(ids) for ids in tokens],
        "max_model_len": answers[0].max_model_len,
        "tokens": tokens[0] if single else tokens,
    }
    if fields.get("return_token_strs", False):
        body["token_strs"] = answers[0].tokens if single else [answer.tokens for answer in answers]
    return _answer(body, review)


async def _tokenize(front: Front, model: str, prompt: Prompt) -> Tokenized:
    question_id = front.questions.new_id()
    answer = await front.questions.ask(question_id, TokenizeRequest(question_id, model, prompt))
    assert isinstance(answer, Tokenized)
    return answer


async def detokenize(request: Request) -> Response:
    front = front_of(request)
    review = front.review(request)
    fields = DETOKENIZE.check(await front.read(request, review), "", review)
    _, model = front.models.resolve(fields.get("model"), review)
    tokens = fields["tokens"]
    single = not tokens or isinstance(tokens[0], int)
    skip = fields.get("skip_special_tokens", False)

    async def text_of(ids: list[int]) -> str:
        question_id = front.questions.new_id()
        question = DetokenizeRequest(question_id, model, pack_ids(ids), skip)
        text = (await front.questions.ask(question_id, question)).text
        assert isinstance(text, str)
        return text

    texts = await asyncio.gather(*(text_of(ids) for ids in ([tokens] if single else tokens)))
    # vLLM's name and SGLang's.
    return _answer(dict.fromkeys(("prompt", "text"), texts[0] if single else texts), review)


async def render_chat(request: Request) -> Response:
    """What the same body would send to the model."""
    front = front_of(request)
    call = await front.accept(request, CHAT)
    generate, _ = build_chat(front, call)
    return _answer(await _rendered(front, generate, call.review), call.review)


async def render_completions(request: Request) -> Response:
    front = front_of(request)
    call = await front.accept(request, COMPLETIONS)
    requests, _ = await build_completions(front, call)
    rendered = [await _rendered(front, generate, call.review) for generate in requests]
    return _answer(rendered[0] if len(rendered) == 1 else {"object": "list", "data": rendered}, call.review)


async def _rendered(front: Front, generate: GenerateRequest, review: Review) -> dict[str, Any]:
    # A question's own id: the client may have given its id to several requests.
    question_id = front.questions.new_id()
    question = RenderRequest(msgspec.structs.replace(generate, request_id=question_id))
    rendered = await front.questions.ask(question_id, question)
    assert isinstance(rendered, Rendered)
    review.take(rendered.adjustments)
    ids = unpack_ids(rendered.ids)
    return {
        "model": generate.model,
        "prompt": rendered.text,
        "token_ids": ids,
        "count": len(ids),
        "max_model_len": front.config.model.context_length,
        "chat_template": rendered.template,
        "chat_template_source": rendered.template_source,
        "messages": None if rendered.messages is None else msgspec.Raw(rendered.messages),
        "sampling_params": rendered.sampling,
        "cached_tokens": await front.questions.peek(rendered.ids, rendered.namespace, PEEK_TIMEOUT_S),
        "adjustments": review.listed(),
    }
