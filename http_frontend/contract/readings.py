"""Where vLLM and SGLang read the specification differently, what Candor does there, and the test that shows it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """`test` is the file under tests/ that proves Candor's column."""

    case: str
    vllm: str
    sglang: str
    candor: str
    test: str


CONTRACT = "http_frontend/test_readings.py"
CHAT = "http_frontend/test_chat.py"

READINGS = (
    Reading(
        "max_tokens that overflows the context",
        "clamped to what remains, the client isn't told",
        "400 that names both counts",
        "400 that names both counts; `--context-overflow clamp` grants the rest and tells",
        "tokenizer_manager",
    ),
    Reading(
        "temperature 0",
        "greedy; top_p, top_k, min_p neutralised",
        "rewritten to temperature 1, top_k 1",
        "greedy, whatever else is set",
        CONTRACT,
    ),
    Reading("temperature in (0, 0.01)", "raised to 0.01 with a log line", "left as it is", "left as it is", CONTRACT),
    Reading(
        "n > 1 at temperature 0",
        "400",
        "n identical choices, each computed",
        "one computation, n copies, told; `--greedy-n reject`",
        CONTRACT,
    ),
    Reading(
        "logprobs / top_logprobs",
        "top_logprobs without logprobs is 400",
        "absent logprobs allowed",
        "OpenAI's shapes; top_logprobs without logprobs is 400",
        CHAT,
    ),
    Reading(
        "max_completion_tokens and max_tokens together",
        "the first wins",
        "the first wins",
        "the first wins, told; errors name the field that was used",
        CONTRACT,
    ),
    Reading(
        "unknown model",
        "404",
        "answered anyway; a colon is read as an adapter selector",
        "404 with the list; `--unknown-model accept`",
        CONTRACT,
    ),
    Reading(
        "a served name with a colon (`org/model:v2`)",
        "fine",
        "may be taken for an adapter",
        "exact match first, so fine",
        CONTRACT,
    ),
    Reading("user", "accepted, ignored", "accepted, ignored", "accepted; told as ignored", CONTRACT),
    Reading(
        "suffix (completions)",
        "ignored or 400, by model",
        "only with a completion template",
        "400 that says so",
        CONTRACT,
    ),
    Reading(
        "stream_options without stream",
        "400",
        "ignored",
        "400; `--stray-stream-options ignore` tells instead",
        CONTRACT,
    ),
    Reading("continuous_usage_stats without include_usage", "ignored", "honoured", "honoured", CONTRACT),
    Reading(
        "seed",
        "per-request generator; same result not promised across batches",
        "dropped unless deterministic mode is on",
        "draws keyed by (seed, position): the batch does not change them",
        "model_runner",
    ),
    Reading(
        "parallel_tool_calls: false",
        "cut after generation, partly a grammar",
        "shapes the constraint only",
        "a constraint always: nothing is generated to be thrown away",
        "http_frontend/test_tools.py",
    ),
    Reading("tools: []", "400", "accepted", "400", "http_frontend/test_tools.py"),
    Reading("tool_choice without tools", "400", "400 for required", "400 save for none", "http_frontend/test_tools.py"),
    Reading(
        "chat_template_kwargs key that the template never reads",
        "dropped silently",
        "passed, unused",
        "told in the header; 400 in strict mode",
        CHAT,
    ),
    Reading(
        "which chat template renders",
        "flag, processor (only without tools), tokenizer, fallback; tools can change which",
        "flag, regex over the whole model path, checkpoint",
        "flag, regex over the last component of the name as given, checkpoint; announced at start, shown in `/v1/contract`, "
        "told in each answer whose checkpoint template it shadows",
        "tokenizer_manager",
    ),
    Reading("add_generation_prompt + continue_final_message", "400 together", "no such field", "400 together", CHAT),
    Reading(
        "logit_bias memory",
        "flat lists, by biased entries",
        "dense batch x vocabulary, rebuilt when the batch changes",
        "dense rows only for requests that carry a bias, updated by row, freed with the last one; a metric",
        "model_runner",
    ),
    Reading(
        "logit_bias, min_p under speculative decoding",
        "400",
        "expanded per draft token",
        "honoured: speculation is not built, so nothing is lost to it",
        "model_runner",
    ),
    Reading(
        "response_format schema with an unsupported keyword",
        "another backend takes over, and whitespace changes with it",
        "the backend's error",
        "400 that names keyword and path; one backend, one whitespace rule",
        "scheduler",
    ),
    Reading(
        "embeddings on a generation server",
        "404: not mounted",
        "400 that says how to start",
        "404: embeddings are not built",
        CONTRACT,
    ),
    Reading(
        "adapters (`lora_path`, `base:adapter`)",
        "honoured with --lora-modules",
        "honoured with --lora-paths",
        "rejected: adapters are not built",
        CHAT,
    ),
    Reading(
        "stop string inside reasoning",
        "cuts it, content is null",
        "cuts it",
        "stop strings apply to content; `stop_in_reasoning` switches it",
        "detokenizer",
    ),
    Reading(
        "error after the first frame",
        "`data:` error, `[DONE]`",
        "the same",
        "the same, and no choice claims `stop`",
        CHAT,
    ),
    Reading(
        "/health",
        "a flag: a stuck engine is healthy",
        "a deep probe: a busy engine is sick",
        "progress: stuck is sick, busy is healthy; `/health_generate` goes through every process and jumps the queue",
        "http_frontend/test_health.py",
    ),
    Reading(
        "/metrics",
        "always",
        "only with a flag",
        "always (`--no-metrics` turns it off)",
        "http_frontend/test_metrics.py",
    ),
    Reading(
        "see the rendered prompt",
        "routes exist, 403 unless started for scale-out",
        "none",
        "`/v1/chat/completions/render`, always",
        "http_frontend/test_tokens.py",
    ),
    Reading(
        "error body",
        "nested, `code` an integer",
        "flat on OpenAI routes, nested in streams",
        "nested everywhere, OpenAI's types and codes",
        CONTRACT,
    ),
    Reading(
        "scheduler process dies",
        "all requests fail, server stops with exit status 0",
        "the whole tree is killed",
        "restarted; requests in flight resume",
        "http_frontend/test_recovery.py",
    ),
    Reading(
        "unknown field, removed field (`guided_json`)",
        "ignored silently",
        "ignored silently",
        "unknown fields are told, with the one that may have been meant; guided_* are honoured as aliases",
        CONTRACT,
    ),
)
