"""POST /v1/chat/completions: from the body to one GenerateRequest and the form of its answer."""

from typing import Any

import msgspec

from function_call.stream import ParserOptions
from http_frontend.contract.kinds import refuse
from http_frontend.contract.review import Review
from http_frontend.front import Call, Front
from http_frontend.openai.chat_choice import MessageStyle
from http_frontend.openai.chat_form import ChatForm, ChatShape
from http_frontend.openai.constraints import grammar_of
from http_frontend.openai.messages import Message, normalise_messages
from http_frontend.openai.parameters import (
    Fields,
    check_stream_options,
    check_whole_vocabulary,
    choices_of,
    detokenize_options,
    generate_request,
    max_tokens_of,
    sampling_parameters,
    wants_prompt_ids,
)
from http_frontend.openai.tools import tool_use_of
from protocol.ids import pack_ids
from protocol.requests import ChatPrompt, GenerateRequest, TokensPrompt

REASONING_NAMES = {
    "both": ("reasoning_content", "reasoning"),
    "reasoning_content": ("reasoning_content",),
    "reasoning": ("reasoning",),
}
THINKING_SWITCHES = ("enable_thinking", "thinking")
RESERVED_KWARGS = (
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "tokenize",
)


def build_chat(front: Front, call: Call) -> tuple[GenerateRequest, ChatForm]:
    """The request and the form of its answer; RequestError for whatever the fields can't mean together."""
    fields, review, args = call.fields, call.review, front.config.args
    include_usage, continuous_usage = check_stream_options(fields, review)
    messages = normalise_messages(fields["messages"], review)
    tools = tool_use_of(fields, grammar_of(fields, front.config), front.parsers, review)
    prompt = chat_prompt(front, fields, messages, tools.rendered, review)
    max_tokens, max_tokens_field = max_tokens_of(fields, review)
    logprobs = logprobs_of(fields)
    check_whole_vocabulary(logprobs, "top_logprobs", max_tokens, fields, front.config)
    sampling = sampling_parameters(
        fields,
        front.config,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs_of(fields),
        grammar=tools.grammar,
    )
    wanted = fields.get("n", 1)
    n, copies = choices_of(fields, sampling, review, wanted)
    request = generate_request(
        call,
        front.worker,
        TokensPrompt(pack_ids(fields["input_ids"]), "input_ids") if "input_ids" in fields else prompt,
        sampling,
        detokenize_options(fields, front.parsers.visible(tools.tool_format)),
        n=n,
        reasoning=front.parsers.budget_format(sampling) or front.parsers.reasoning_format(),
        max_tokens_field=max_tokens_field,
    )
    options = ParserOptions(
        unknown_tools="drop" if tools.forbids_calls else args.unknown_tools,
        separate_reasoning=fields.get("separate_reasoning", True),
        stream_reasoning=fields.get("stream_reasoning", True),
        earlier_calls=sum(len(message.get("tool_calls", ())) for message in messages),
    )
    known_tools = None if tools.forbids_calls else tools.rendered
    shape = ChatShape(
        id=f"chatcmpl-{call.id}",
        model=call.model,
        created=call.created,
        fingerprint=front.models.fingerprint,
        choices=wanted,
        copies=copies,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        ids_as_tokens=fields.get("return_tokens_as_token_ids", False),
        returns_ids=fields.get("return_token_ids", False),
        returns_prompt_ids=wants_prompt_ids(fields),
        returns_adjustments=fields.get("return_adjustments", False),
        style=MessageStyle(
            reasoning_names=REASONING_NAMES[args.reasoning_field],
            shows_reasoning=fields.get("include_reasoning", True),
            custom_tools=tools.custom,
            legacy_calls=tools.legacy,
            echo=echo_of(fields, messages),
        ),
        new_parser=lambda admitted: front.parsers.new_parser(tools.tool_format, known_tools, admitted, options),
    )
    return request, ChatForm(shape, review)


def chat_prompt(
    front: Front, fields: Fields, messages: list[Message], tools: list[dict[str, Any]] | None, review: Review
) -> ChatPrompt:
    """The conversation to be rendered, for a chat as for /tokenize."""
    prefix = any(message.get("prefix") for message in fields["messages"][-1:])
    continues = fields.get("continue_final_message", False) or prefix
    if continues and fields.get("add_generation_prompt"):
        refuse("continue_final_message", "can't be set together with add_generation_prompt")
    if continues and messages[-1]["role"] != "assistant":
        refuse("continue_final_message", "the last message must be the assistant's")
    prompt = ChatPrompt(
        messages=messages,
        tools=tools,
        documents=fields.get("documents"),
        add_generation_prompt=fields.get("add_generation_prompt", not continues),
        continue_final_message=continues,
        add_special_tokens=fields.get("add_special_tokens", False),
        template=fields.get("chat_template"),
        template_kwargs=template_kwargs(fields, front.template_reads, review),
    )
    for name, value in (
        ("functions" if "functions" in fields else "tools", prompt.tools),
        ("documents", prompt.documents),
        ("chat_template_kwargs", prompt.template_kwargs),
    ):
        try:
            msgspec.msgpack.encode(value)
        except OverflowError:  # JSON has such numbers, what the processes say to each other has not
            refuse(name, "holds an integer of more than 64 bits")
    return prompt


def template_kwargs(fields: Fields, reads: frozenset[str] | None, review: Review) -> dict[str, Any]:
    """Variables for the template. An effort becomes whichever switch the template in force reads."""
    given: dict[str, Any] = dict(fields.get("chat_template_kwargs", {}))
    for name in RESERVED_KWARGS:
        if name in given:
            refuse(f"chat_template_kwargs.{name}", "is a name of the server's own")
    effort = fields.get("reasoning_effort")
    if effort is None:
        return given
    switches = {"reasoning_effort": effort} | dict.fromkeys(THINKING_SWITCHES, effort != "none")
    read = {name: value for name, value in switches.items() if reads is None or name in reads}
    if not read:
        review.tell("reasoning_effort", "ignored", f"the chat template reads none of {', '.join(switches)}")
    return read | given


def logprobs_of(fields: Fields) -> int | None:
    """How many alternatives per token; None without logprobs."""
    if fields.get("logprobs", False):
        return int(fields.get("top_logprobs", 0))
    if "top_logprobs" in fields:
        refuse("top_logprobs", "needs logprobs to be true")
    if "logprob_token_ids" in fields:
        refuse("logprob_token_ids", "needs logprobs to be true")
    return None


def prompt_logprobs_of(fields: Fields) -> int | None:
    count: int | None = fields.get("prompt_logprobs")
    if count is not None and fields.get("stream", False):
        refuse("prompt_logprobs", "is not available in a stream")
    return count


def echo_of(fields: Fields, messages: list[Message]) -> str:
    """The text of a final assistant message, if it is to be repeated before what is new."""
    last = messages[-1]
    if not fields.get("echo", False) or last["role"] != "assistant":
        return ""
    content = last["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())
