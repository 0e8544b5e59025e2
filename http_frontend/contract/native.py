"""The body of POST /generate, SGLang's native endpoint."""

from http_frontend.contract.field import EXTENSION, HONOURED, Field, Record
from http_frontend.contract.kinds import Anything, Either, Flag, Integer, ListOf, MapOf, Number, Text, TokenIds
from http_frontend.contract.sampling import (
    DRAWING,
    GRAMMAR,
    ID_PATTERN,
    MAX_COUNT,
    QUEUEING,
    REJECTED,
    SHAPE,
    STOPPING,
    TEMPLATE,
    WHITESPACE,
    budget_ruling,
    ignored,
    max_tokens_ruling,
    rejected,
)

MAX_BATCH = 1024
LOGPROBS = "model runner: logprobs"

SAMPLING = Record(
    (
        *(field for field in DRAWING if field.name not in ("seed", "min_tokens")),
        *(field for field in STOPPING if field.name != "include_stop_str_in_output"),
        Field("max_new_tokens", Integer(0, MAX_COUNT), "tokenizer manager: length", max_tokens_ruling, probe=(2, 5)),
        Field("min_new_tokens", Integer(0, MAX_COUNT), "scheduler and model runner: the draw", probe=(0, 8)),
        Field("sampling_seed", Integer(-(2**63), 2**63 - 1), "scheduler and model runner: the draw", probe=(1, 2)),
        Field("json_schema", Either((Text(1), MapOf(Anything()))), GRAMMAR),
        Field("regex", Text(1, 32768), GRAMMAR, probe=("a+b", "c+d")),
        Field("ebnf", Text(1, 262144), GRAMMAR, probe=('root ::= "a"', 'root ::= "b"')),
        Field("structural_tag", Either((Text(1), MapOf(Anything()))), GRAMMAR),
        WHITESPACE,
        Field("beam_width", Integer(), "nowhere", rejected("beam search is not built"), neutral=(1,)),
        Field("custom_params", Anything(), "nowhere", rejected("code from clients is not run")),
    )
)


def _batched(kind: Integer | Flag | TokenIds | Number) -> Either:
    return Either((kind, ListOf(kind, low=1, high=MAX_BATCH)))


RID = Text(1, 128, ID_PATTERN)

GENERATE = Record(
    (
        Field("text", Either((Text(), ListOf(Text(), low=1, high=MAX_BATCH))), TEMPLATE, probe=("Once", "The end")),
        Field("input_ids", Either((TokenIds(low=1), ListOf(TokenIds(low=1), low=1, high=MAX_BATCH))), TEMPLATE),
        Field("sampling_params", Either((SAMPLING, ListOf(SAMPLING, low=1, high=MAX_BATCH))), "see its fields"),
        Field("stream", Flag(), SHAPE, probe=(False, True)),
        Field("model", Text(0, 512), "tokenizer manager: routing", EXTENSION),
        Field("return_logprob", _batched(Flag()), LOGPROBS, HONOURED, probe=(False, True)),
        Field("logprob_start_len", _batched(Integer(-1, MAX_COUNT)), LOGPROBS, probe=(-1, 0)),
        Field("top_logprobs_num", _batched(Integer(0, 20)), LOGPROBS, probe=(0, 2)),
        Field("token_ids_logprob", TokenIds(), LOGPROBS),
        Field("return_text_in_logprobs", Flag(), SHAPE, probe=(False, True)),
        Field("incremental_streaming_output", Flag(), SHAPE, EXTENSION, probe=(False, True)),
        Field("return_prompt_token_ids", Flag(), SHAPE, probe=(False, True)),
        Field("return_adjustments", Flag(), SHAPE, EXTENSION, probe=(False, True)),
        Field("max_thinking_tokens", Integer(-1, MAX_COUNT), GRAMMAR, budget_ruling, neutral=(-1,)),
        Field(
            "require_reasoning", Flag(), GRAMMAR, ignored("the prompt shows where reasoning begins"), neutral=(False,)
        ),
        Field("log_metrics", Flag(), "nowhere", ignored("metrics count every request"), neutral=(True,), harmless=True),
        Field("no_logs", Flag(), "nowhere", ignored("texts are logged with --log-requests only"), harmless=True),
        Field("custom_labels", Anything(), "nowhere", ignored("metrics have fixed labels"), harmless=True),
        Field("routing_key", Text(), "nowhere", ignored("replicas are chosen by --load-balance"), harmless=True),
        Field("input_embeds", Anything(), "nowhere", rejected("prompts are text or token ids")),
        Field("image_data", Anything(), "nowhere", rejected("this server has text models only")),
        Field("audio_data", Anything(), "nowhere", rejected("this server has text models only")),
        Field("video_data", Anything(), "nowhere", rejected("this server has text models only")),
        *(field for field in QUEUEING if field.name not in ("rid", "request_id")),
        Field("rid", Either((RID, ListOf(RID, low=1, high=MAX_BATCH))), "http front end: the id of the answer"),
        *(field for field in REJECTED if field.name not in ("beam_width", "custom_params")),
    )
)
