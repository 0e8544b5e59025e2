"""Fields that chat completions and completions share: how tokens are drawn, when generation stops, what is reported."""

from http_frontend.contract.field import EXTENSION, Field, Record, Ruling
from http_frontend.contract.kinds import Anything, Either, Flag, Integer, ListOf, MapOf, Number, Text, TokenIds, Word
from runtime.engine_config import EngineConfig

MAX_COUNT = 2**53
MAX_CHOICES = 128
MAX_STOPS = 32
MAX_TOP_LOGPROBS = 20
MAX_LOGPROB_ENTRIES = 2**20
ID_PATTERN = r"[\x21-\x7e]{1,128}"
SALT_PATTERN = r"[^@/\\\x00]{1,128}"


def priority_ruling(config: EngineConfig) -> Ruling:
    if config.args.schedule_policy == "priority":
        return Ruling("extension", "higher runs first, under --schedule-policy priority")
    return Ruling(
        "ignored", f"--schedule-policy is {config.args.schedule_policy}; start with priority to have it honoured"
    )


def greedy_n_ruling(config: EngineConfig) -> Ruling:
    if config.args.greedy_n == "duplicate":
        return Ruling(
            "honoured", "at temperature 0 the answer is computed once and copied (told); --greedy-n reject refuses"
        )
    return Ruling("honoured", "at temperature 0 more than one is a 400 (--greedy-n reject)")


def max_tokens_ruling(config: EngineConfig) -> Ruling:
    if config.args.context_overflow == "clamp":
        return Ruling("clamped", "to what the context leaves after the prompt, and told (--context-overflow clamp)")
    return Ruling("honoured", "over the context with the prompt is a 400 naming both (--context-overflow reject)")


def stream_options_ruling(config: EngineConfig) -> Ruling:
    if config.args.stray_stream_options == "ignore":
        return Ruling("honoured", "without stream it is ignored and told (--stray-stream-options ignore)")
    return Ruling("honoured", "without stream it is a 400 (--stray-stream-options reject)")


def reasoning_ruling(config: EngineConfig) -> Ruling:
    if config.reasoning_parser:
        return Ruling("extension", f"the reasoning parser is {config.reasoning_parser}")
    return Ruling("ignored", "the server runs without --reasoning-parser, so no part of an answer is reasoning")


def budget_ruling(config: EngineConfig) -> Ruling:
    if config.reasoning_parser:
        return Ruling("extension", "the end of reasoning is forced when the budget is spent")
    return Ruling("rejected", "needs --reasoning-parser, which tells where reasoning begins and ends")


def rejected(reason: str) -> Ruling:
    return Ruling("rejected", reason)


def ignored(reason: str) -> Ruling:
    return Ruling("ignored", reason)


DRAW = "scheduler and model runner: the draw"
STOP = "detokenizer: where the text ends"
SHAPE = "http front end: the shape of the answer"
TEMPLATE = "tokenizer manager: the prompt"
GRAMMAR = "scheduler: the grammar of the answer"
WHITESPACE = Field("json_whitespace", Word(("any", "compact", "bounded")), GRAMMAR, EXTENSION, probe=("compact", "any"))
QUEUE = "scheduler: the queue"

STREAM_OPTIONS = Record(
    (
        Field("include_usage", Flag(), SHAPE, probe=(False, True)),
        Field("continuous_usage_stats", Flag(), SHAPE, EXTENSION, probe=(False, True)),
        Field("include_obfuscation", Flag(), SHAPE, ignored("frames are not padded"), neutral=(False,), harmless=True),
    )
)

DRAWING = (
    Field("temperature", Number(0, 2), DRAW, probe=(0, 1.9)),
    Field("top_p", Number(0, 1, above=True), DRAW, probe=(0.0001, 1.0)),
    Field("top_k", Integer(-1, 2**31 - 1), DRAW, EXTENSION, probe=(1, 0)),
    Field("min_p", Number(0, 1), DRAW, EXTENSION, probe=(0.0, 1.0)),
    Field("frequency_penalty", Number(-2, 2), DRAW, probe=(-2, 2)),
    Field("presence_penalty", Number(-2, 2), DRAW, probe=(-2, 2)),
    Field("repetition_penalty", Number(0, 100, above=True), DRAW, EXTENSION, probe=(0.2, 2.0)),
    Field(
        "seed",
        Integer(-(2**63), 2**63 - 1),
        DRAW,
        Ruling(
            "honoured",
            "draws are keyed by (seed, position), so the batch does not change them; taken modulo 2^62. Bitwise equal "
            "logits across batch shapes are promised where the arithmetic is exact or --deterministic is set",
        ),
        probe=(1, 2),
    ),
    Field("logit_bias", MapOf(Number(-100, 100), high=4096), DRAW, probe=({"50": -100}, {"50": 100})),
    Field("allowed_token_ids", TokenIds(low=1), DRAW, EXTENSION, probe=([40], [41])),
    Field(
        "bad_words",
        ListOf(Text(1, 256), high=128),
        DRAW,
        Ruling(
            "extension",
            "the tokens that spell a word, alone and behind a blank, are not drawn in a row; other tokens may spell it, "
            "as part of a longer word for one",
        ),
        probe=([], ["the"]),
    ),
    Field("min_tokens", Integer(0, MAX_COUNT), DRAW, EXTENSION, probe=(0, 8)),
    Field("ignore_eos", Flag(), DRAW, EXTENSION, probe=(False, True)),
    Field("n", Integer(1, MAX_CHOICES), "scheduler: sequences of one prompt", greedy_n_ruling, probe=(1, 2)),
)

STOPPING = (
    Field("stop", Either((Text(1, 1024), ListOf(Text(1, 1024), high=MAX_STOPS))), STOP, probe=([], ["e"])),
    Field("stop_token_ids", TokenIds(), STOP, EXTENSION, probe=([], [40])),
    Field(
        "stop_regex",
        Either((Text(1, 256), ListOf(Text(1, 256), high=MAX_STOPS))),
        STOP,
        EXTENSION,
        probe=([], ["[aeiou]"]),
    ),
    Field("no_stop_trim", Flag(), STOP, EXTENSION, probe=(False, True)),
    Field("include_stop_str_in_output", Flag(), STOP, EXTENSION, probe=(False, True)),
    Field("stop_in_reasoning", Flag(), STOP, reasoning_ruling, probe=(False, True), neutral=(False,)),
    Field("skip_special_tokens", Flag(), STOP, EXTENSION, probe=(True, False)),
    Field("spaces_between_special_tokens", Flag(), STOP, EXTENSION, probe=(True, False)),
    Field("stream_interval", Integer(1, 1000), STOP, EXTENSION, probe=(1, 4)),
)

CONSTRAINTS = (
    Field("regex", Text(1, 32768), GRAMMAR, EXTENSION, probe=("a+b", "c+d")),
    Field("ebnf", Text(1, 262144), GRAMMAR, EXTENSION, probe=('root ::= "a"', 'root ::= "b"')),
    Field("structural_tag", Either((Text(1), MapOf(Anything()))), GRAMMAR, EXTENSION),
    Field("json_schema", Either((Text(1), MapOf(Anything()), Flag())), GRAMMAR, EXTENSION),
    Field("guided_json", Either((Text(1), MapOf(Anything()), Flag())), GRAMMAR, EXTENSION),
    Field("guided_regex", Text(1, 32768), GRAMMAR, EXTENSION, probe=("a+b", "c+d")),
    Field("guided_choice", ListOf(Text(1), low=1, high=4096), GRAMMAR, EXTENSION, probe=(["yes"], ["no"])),
    Field("guided_grammar", Text(1, 262144), GRAMMAR, EXTENSION, probe=('root ::= "a"', 'root ::= "b"')),
    Field("guided_json_object", Flag(), GRAMMAR, EXTENSION),
    WHITESPACE,
    Field(
        "guided_whitespace_pattern",
        Text(),
        GRAMMAR,
        rejected("json_whitespace chooses between any, compact and bounded"),
    ),
    Field(
        "guided_decoding_backend",
        Text(),
        GRAMMAR,
        ignored("there is one grammar backend"),
        neutral=("auto", "xgrammar"),
    ),
    Field(
        "structured_outputs",
        Record(
            (
                Field("json", Either((Text(1), MapOf(Anything()), Flag())), GRAMMAR, EXTENSION),
                Field("regex", Text(1, 32768), GRAMMAR, EXTENSION, probe=("a+b", "c+d")),
                Field("choice", ListOf(Text(1), low=1, high=4096), GRAMMAR, EXTENSION, probe=(["yes"], ["no"])),
                Field("grammar", Text(1, 262144), GRAMMAR, EXTENSION, probe=('root ::= "a"', 'root ::= "b"')),
                Field("json_object", Flag(), GRAMMAR, EXTENSION),
                Field("structural_tag", Either((Text(1), MapOf(Anything()))), GRAMMAR, EXTENSION),
                Field("disable_any_whitespace", Flag(), GRAMMAR, EXTENSION),
                Field(
                    "disable_additional_properties", Flag(), GRAMMAR, rejected("say it in the schema"), neutral=(False,)
                ),
                Field(
                    "whitespace_pattern",
                    Text(),
                    GRAMMAR,
                    rejected("json_whitespace chooses between any, compact and bounded"),
                ),
                Field(
                    "backend", Text(), GRAMMAR, ignored("there is one grammar backend"), neutral=("auto", "xgrammar")
                ),
            )
        ),
        GRAMMAR,
        EXTENSION,
    ),
    Field(
        "response_format",
        Record(
            (
                Field(
                    "type",
                    Word(("text", "json_object", "json_schema", "structural_tag", "regex", "ebnf")),
                    GRAMMAR,
                    required=True,
                ),
                Field(
                    "json_schema",
                    Record(
                        (
                            Field("name", Text(0, 128), GRAMMAR, harmless=True),
                            Field("description", Text(), GRAMMAR, ignored("templates do not read it"), harmless=True),
                            Field("schema", Either((MapOf(Anything()), Flag())), GRAMMAR),
                            Field("strict", Flag(), GRAMMAR),
                        )
                    ),
                    GRAMMAR,
                ),
                Field("schema", Either((MapOf(Anything()), Flag())), GRAMMAR, EXTENSION),
                Field("structures", ListOf(Anything()), GRAMMAR, EXTENSION),
                Field("triggers", ListOf(Text(1)), GRAMMAR, EXTENSION),
                Field("format", MapOf(Anything()), GRAMMAR, EXTENSION),
                Field("pattern", Text(1, 32768), GRAMMAR, EXTENSION),
                Field("grammar", Text(1, 262144), GRAMMAR, EXTENSION),
            )
        ),
        GRAMMAR,
        probe=({"type": "text"}, {"type": "json_object"}),
    ),
)

REASONING = (
    Field("thinking_token_budget", Integer(-1, MAX_COUNT), GRAMMAR, budget_ruling, neutral=(-1,)),
    Field("max_thinking_tokens", Integer(-1, MAX_COUNT), GRAMMAR, budget_ruling, neutral=(-1,)),
)

REPORTING = (
    Field("stream", Flag(), SHAPE, probe=(False, True)),
    Field("stream_options", STREAM_OPTIONS, SHAPE, stream_options_ruling),
    Field("return_token_ids", Flag(), SHAPE, EXTENSION, probe=(False, True)),
    Field("return_prompt_token_ids", Flag(), SHAPE, EXTENSION, probe=(False, True)),
    Field("return_tokens_as_token_ids", Flag(), SHAPE, EXTENSION, probe=(False, True)),
    Field("return_adjustments", Flag(), SHAPE, EXTENSION, probe=(False, True)),
    Field("prompt_logprobs", Integer(0, MAX_TOP_LOGPROBS), "model runner: logprobs", EXTENSION, probe=(None, 1)),
    Field("logprob_token_ids", TokenIds(), "model runner: logprobs", EXTENSION),
)

QUEUEING = (
    Field("priority", Integer(-(2**31), 2**31 - 1), QUEUE, priority_ruling, neutral=(0,)),
    Field("cache_salt", Text(1, 128, SALT_PATTERN), "scheduler: the namespace of the prefix cache", EXTENSION),
    Field("extra_key", Text(1, 128, SALT_PATTERN), "scheduler: the namespace of the prefix cache", EXTENSION),
    Field("request_id", Text(1, 128, ID_PATTERN), "http front end: the id of the answer", EXTENSION, probe=("a", "b")),
    Field("rid", Text(1, 128, ID_PATTERN), "http front end: the id of the answer", EXTENSION, probe=("a", "b")),
    Field("request_timeout_s", Number(0, 86400, above=True), "http front end: the deadline", EXTENSION),
    Field("queue_timeout_s", Number(0, 86400, above=True), QUEUE, EXTENSION),
    Field("routed_dp_rank", Integer(0, 1023), "tokenizer manager: the replica", EXTENSION),
    Field("data_parallel_rank", Integer(0, 1023), "tokenizer manager: the replica", EXTENSION),
)

# Two names of one thing, vLLM's and SGLang's: the first wins, and the other is told.
TWO_NAMES = (
    ("request_id", "rid"),
    ("cache_salt", "extra_key"),
    ("routed_dp_rank", "data_parallel_rank"),
    ("thinking_token_budget", "max_thinking_tokens"),
)

TRUNCATION = (
    Field("truncate_prompt_tokens", Integer(-1, MAX_COUNT), TEMPLATE, EXTENSION, probe=(None, 1)),
    Field("truncation_side", Word(("left",)), TEMPLATE, EXTENSION),
)

TOLD = (
    Field("user", Text(), "nowhere", ignored("nothing here depends on who asks"), harmless=True),
    Field("metadata", MapOf(Anything(), high=64), "nowhere", ignored("answers are not stored"), harmless=True),
    Field("safety_identifier", Text(), "nowhere", ignored("nothing here depends on who asks"), harmless=True),
    Field("store", Flag(), "nowhere", ignored("answers are not stored"), neutral=(False,)),
    Field("service_tier", Text(), "nowhere", ignored("there is one tier"), neutral=("auto", "default"), harmless=True),
    Field(
        "prompt_cache_key",
        Text(),
        "nowhere",
        ignored("the prefix cache needs no key; cache_salt separates"),
        harmless=True,
    ),
    Field("prompt_cache_retention", Text(), "nowhere", ignored("the prefix cache keeps what fits"), harmless=True),
)

REJECTED = (
    Field("use_beam_search", Flag(), "nowhere", rejected("beam search is not built"), neutral=(False,)),
    Field("beam_width", Integer(), "nowhere", rejected("beam search is not built"), neutral=(1,)),
    Field(
        "length_penalty", Number(), "nowhere", rejected("it belongs to beam search, which is not built"), neutral=(1,)
    ),
    Field(
        "early_stopping",
        Anything(),
        "nowhere",
        rejected("it belongs to beam search, which is not built"),
        neutral=(False,),
    ),
    Field("repetition_detection", Anything(), "nowhere", rejected("not built")),
    Field("watermark", Anything(), "nowhere", rejected("not built"), neutral=(False,)),
    Field("watermarking", Anything(), "nowhere", rejected("not built"), neutral=(False,)),
    Field("lora_path", Text(), "nowhere", rejected("adapters are not built"), neutral=("",)),
    Field("custom_logit_processor", Anything(), "nowhere", rejected("code from clients is not run")),
    Field("custom_params", Anything(), "nowhere", rejected("code from clients is not run")),
    Field("vllm_xargs", Anything(), "nowhere", rejected("there are no plug-in processors"), neutral=({},)),
    Field("return_hidden_states", Flag(), "nowhere", rejected("not built"), neutral=(False,)),
    Field("return_routed_experts", Flag(), "nowhere", rejected("not built"), neutral=(False,)),
    Field("return_sampling_mask", Flag(), "nowhere", rejected("not built"), neutral=(False,)),
    Field("session_params", Anything(), "nowhere", rejected("sessions are not built; the prefix cache serves them")),
    Field("session_id", Text(), "nowhere", ignored("the prefix cache serves sessions without a name"), harmless=True),
    Field("kv_transfer_params", Anything(), "nowhere", rejected("disaggregated serving is not built")),
    Field("ec_transfer_params", Anything(), "nowhere", rejected("disaggregated serving is not built")),
    Field("bootstrap_host", Anything(), "nowhere", rejected("disaggregated serving is not built")),
    Field("bootstrap_port", Anything(), "nowhere", rejected("disaggregated serving is not built")),
    Field("bootstrap_room", Anything(), "nowhere", rejected("disaggregated serving is not built")),
    Field("mm_processor_kwargs", Anything(), "nowhere", rejected("this server has text models only"), neutral=({},)),
    Field("media_io_kwargs", Anything(), "nowhere", rejected("this server has text models only"), neutral=({},)),
)

SHARED = (
    *DRAWING, *STOPPING, *CONSTRAINTS, *REASONING, *REPORTING, *QUEUEING, *TRUNCATION, *TOLD, *REJECTED,
)  # fmt: skip
