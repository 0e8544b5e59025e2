"""The body of POST /v1/chat/completions."""

from http_frontend.contract.field import EXTENSION, Field, Record, Ruling
from http_frontend.contract.kinds import Anything, Either, Flag, Integer, ListOf, MapOf, Text, TokenIds, Word
from http_frontend.contract.sampling import (
    GRAMMAR,
    MAX_COUNT,
    MAX_TOP_LOGPROBS,
    SHAPE,
    SHARED,
    TEMPLATE,
    ignored,
    max_tokens_ruling,
    reasoning_ruling,
    rejected,
)
from runtime.engine_config import EngineConfig

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
GUESSES = "scheduler: what may come next"
PARSE = "http front end: what the answer is split into"


def template_ruling(config: EngineConfig) -> Ruling:
    if config.args.trust_request_chat_template:
        return Ruling("extension", "templates from requests are trusted (--trust-request-chat-template)")
    return Ruling("rejected", "templates from requests need --trust-request-chat-template")


def prediction_ruling(config: EngineConfig) -> Ruling:
    if config.draft_tokens:
        return Ruling("honoured", "sooner where it comes true; the answer is the same")
    return Ruling("ignored", "the server runs without speculation: the answer is the same, no sooner")


PART = Record(
    (
        Field("type", Text(1, 64), TEMPLATE, required=True),
        Field("text", Text(), TEMPLATE),
        Field("refusal", Text(), TEMPLATE),
        Field("thinking", Text(), TEMPLATE, EXTENSION),
        Field("image_url", Anything(), TEMPLATE, rejected("this server has text models only")),
        Field("input_audio", Anything(), TEMPLATE, rejected("this server has text models only")),
        Field("audio_url", Anything(), TEMPLATE, rejected("this server has text models only")),
        Field("video_url", Anything(), TEMPLATE, rejected("this server has text models only")),
        Field("file", Anything(), TEMPLATE, rejected("this server has text models only")),
        Field("cache_control", Anything(), TEMPLATE, ignored("the prefix cache needs no marks"), harmless=True),
    )
)

CALLED = Record((Field("name", Text(1, 256), TEMPLATE, required=True), Field("arguments", Anything(), TEMPLATE)))

TOOL_CALL = Record(
    (
        Field("id", Text(), TEMPLATE),
        Field("index", Integer(), TEMPLATE, harmless=True),
        Field("type", Word(("function", "custom")), TEMPLATE),
        Field("function", CALLED, TEMPLATE),
        Field(
            "custom",
            Record((Field("name", Text(1), TEMPLATE, required=True), Field("input", Text(), TEMPLATE))),
            TEMPLATE,
        ),
    )
)

MESSAGE = Record(
    (
        Field("role", Word(ROLES), TEMPLATE, required=True),
        Field("content", Either((Text(), ListOf(PART))), TEMPLATE),
        Field("name", Text(0, 256), TEMPLATE),
        Field("tool_calls", ListOf(TOOL_CALL, high=1024), TEMPLATE),
        Field("tool_call_id", Text(0, 256), TEMPLATE),
        Field("function_call", CALLED, TEMPLATE),
        Field("reasoning_content", Text(), TEMPLATE, EXTENSION),
        Field("reasoning", Text(), TEMPLATE, EXTENSION),
        Field("refusal", Text(), TEMPLATE),
        Field("prefix", Flag(), TEMPLATE, EXTENSION),
        Field(
            "annotations",
            ListOf(Anything()),
            TEMPLATE,
            ignored("templates do not read them"),
            neutral=([],),
            harmless=True,
        ),
        Field("audio", Anything(), TEMPLATE, rejected("this server has text models only")),
        Field("tools", Anything(), TEMPLATE, rejected("tools belong beside messages")),
    )
)

PREDICTED_PART = Record(
    (
        Field("type", Word(("text",)), GUESSES, required=True),
        Field("text", Text(), GUESSES, required=True),
    )
)

PREDICTION = Record(
    (
        Field("type", Word(("content",)), GUESSES, required=True),
        Field("content", Either((Text(), ListOf(PREDICTED_PART))), GUESSES, required=True),
    )
)

FUNCTION = Record(
    (
        Field("name", Text(1, 256), TEMPLATE, required=True),
        Field("description", Text(), TEMPLATE),
        Field("parameters", Either((MapOf(Anything()), Flag())), GRAMMAR),
        Field("strict", Flag(), GRAMMAR),
    )
)

TOOL = Record(
    (
        Field("type", Word(("function", "custom")), TEMPLATE, required=True),
        Field("function", FUNCTION, TEMPLATE),
        Field(
            "custom",
            Record(
                (
                    Field("name", Text(1, 256), TEMPLATE, required=True),
                    Field("description", Text(), TEMPLATE),
                    Field("format", MapOf(Anything()), GRAMMAR),
                )
            ),
            TEMPLATE,
        ),
        Field("cache_control", Anything(), TEMPLATE, ignored("the prefix cache needs no marks"), harmless=True),
    )
)

CHAT = Record(
    (
        Field("messages", ListOf(MESSAGE, low=1, high=16384), TEMPLATE, required=True),
        Field("model", Text(0, 512), "tokenizer manager: routing"),
        Field(
            "max_completion_tokens", Integer(1, MAX_COUNT), "tokenizer manager: length", max_tokens_ruling, probe=(2, 5)
        ),
        Field("max_tokens", Integer(1, MAX_COUNT), "tokenizer manager: length", max_tokens_ruling, probe=(2, 5)),
        Field("logprobs", Flag(), "model runner: logprobs", probe=(False, True)),
        Field(
            "top_logprobs",
            Integer(-1, MAX_TOP_LOGPROBS),
            "model runner: logprobs",
            Ruling("honoured", "-1 is the whole vocabulary, in short answers without a stream"),
            probe=(0, 2),
        ),
        *SHARED,
        Field("tools", ListOf(TOOL, low=1, high=1024), TEMPLATE),
        Field("tool_choice", Either((Text(1), MapOf(Anything()))), GRAMMAR),
        Field("parallel_tool_calls", Flag(), GRAMMAR),
        Field("functions", ListOf(FUNCTION, low=1, high=1024), TEMPLATE),
        Field("function_call", Either((Text(1), MapOf(Anything()))), GRAMMAR),
        Field("reasoning_effort", Word(EFFORTS), TEMPLATE),
        Field("include_reasoning", Flag(), PARSE, reasoning_ruling, neutral=(True,)),
        Field("separate_reasoning", Flag(), PARSE, reasoning_ruling, neutral=(True,)),
        Field("stream_reasoning", Flag(), PARSE, reasoning_ruling, neutral=(True,)),
        Field(
            "verbosity",
            Word(("low", "medium", "high")),
            "nowhere",
            ignored("no template reads it"),
            neutral=("medium",),
        ),
        Field("modalities", ListOf(Text()), "nowhere", rejected("answers are text"), neutral=(["text"],)),
        Field("audio", Anything(), "nowhere", rejected("answers are text")),
        Field(
            "prediction",
            PREDICTION,
            GUESSES,
            prediction_ruling,
            probe=({"type": "content", "content": "a"}, {"type": "content", "content": "b"}),
        ),
        Field("web_search_options", Anything(), "nowhere", rejected("this server does not search")),
        Field("echo", Flag(), SHAPE, EXTENSION, probe=(False, True)),
        Field("add_generation_prompt", Flag(), TEMPLATE, EXTENSION, probe=(True, False)),
        Field("continue_final_message", Flag(), TEMPLATE, EXTENSION),
        Field("add_special_tokens", Flag(), TEMPLATE, EXTENSION),
        Field("documents", ListOf(MapOf(Anything()), high=4096), TEMPLATE, EXTENSION),
        Field("chat_template", Text(1), TEMPLATE, template_ruling),
        Field("chat_template_kwargs", MapOf(Anything()), TEMPLATE, EXTENSION),
        Field("input_ids", TokenIds(low=1), TEMPLATE, Ruling("extension", "replaces the rendered messages")),
    )
)
