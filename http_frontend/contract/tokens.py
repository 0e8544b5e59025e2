"""The bodies of the smaller endpoints: tokenize, detokenize, abort, and the parsers on their own."""

from http_frontend.contract.chat import EFFORTS, MESSAGE, TOOL, template_ruling
from http_frontend.contract.field import EXTENSION, Field, Record
from http_frontend.contract.kinds import Anything, Either, Flag, ListOf, MapOf, Text, TokenIds, Word
from http_frontend.contract.sampling import SHAPE, TEMPLATE

TOKENIZER = "tokenizer manager"

TOKENIZE = Record(
    (
        Field("model", Text(0, 512), "tokenizer manager: routing"),
        Field("prompt", Either((Text(), ListOf(Text(), low=1, high=1024))), TOKENIZER, probe=("a", "b")),
        Field("text", Either((Text(), ListOf(Text(), low=1, high=1024))), TOKENIZER, EXTENSION, probe=("a", "b")),
        Field("messages", ListOf(MESSAGE, low=1, high=16384), TEMPLATE),
        Field("tools", ListOf(TOOL, low=1, high=1024), TEMPLATE),
        Field("add_special_tokens", Flag(), TOKENIZER),
        Field("return_token_strs", Flag(), SHAPE, probe=(False, True)),
        Field("add_generation_prompt", Flag(), TEMPLATE),
        Field("continue_final_message", Flag(), TEMPLATE),
        Field("chat_template", Text(1), TEMPLATE, template_ruling),
        Field("chat_template_kwargs", MapOf(Anything()), TEMPLATE),
        Field("reasoning_effort", Word(EFFORTS), TEMPLATE),
        Field("documents", ListOf(MapOf(Anything()), high=4096), TEMPLATE),
    )
)

DETOKENIZE = Record(
    (
        Field("model", Text(0, 512), "tokenizer manager: routing"),
        Field("tokens", Either((TokenIds(), ListOf(TokenIds(), low=1, high=1024))), TOKENIZER, required=True),
        Field("skip_special_tokens", Flag(), TOKENIZER),
    )
)

ABORT = Record(
    (
        Field("rid", Text(0, 128), "every process that has the request"),
        Field("request_id", Text(0, 128), "every process that has the request", EXTENSION),
        Field("abort_all", Flag(), "every process"),
    )
)

PARSE_FUNCTION_CALL = Record(
    (
        Field("text", Text(), "function_call", required=True),
        Field("tools", ListOf(TOOL, high=1024), "function_call"),
        Field("tool_call_parser", Text(1, 128), "function_call"),
    )
)

SEPARATE_REASONING = Record(
    (
        Field("text", Text(), "function_call", required=True),
        Field("reasoning_parser", Text(1, 128), "function_call"),
        Field("prompt_opens_think", Flag(), "function_call", EXTENSION, probe=(False, True)),
    )
)
