"""Where vLLM and SGLang read the specification differently, what Candor does there, and the test that shows it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """`test` is the test, in a file under tests/, that proves Candor's column."""

    case: str
    vllm: str
    sglang: str
    candor: str
    test: str


READINGS = (
    Reading(
        "max_tokens that overflows the context",
        "clamped to what remains, the client isn't told",
        "400 that names both counts",
        "400 that names both counts; `--context-overflow clamp` grants the rest and tells",
        "tokenizer_manager/test_preparation.py::test_more_than_the_context_is_rejected_with_all_counts",
    ),
    Reading(
        "temperature 0",
        "greedy; top_p, top_k, min_p neutralised",
        "rewritten to temperature 1, top_k 1",
        "greedy, whatever else is set",
        "integration/test_contract.py::test_two_values_do_two_things",
    ),
    Reading(
        "temperature in (0, 0.01)",
        "raised to 0.01 with a log line",
        "left as it is",
        "left as it is",
        "http_frontend/test_readings.py::test_temperature_is_left_as_it_is",
    ),
    Reading(
        "n > 1 at temperature 0",
        "400",
        "n identical choices, each computed",
        "one computation, n copies, told; `--greedy-n reject`",
        "http_frontend/test_chat.py::test_greedy_choices_are_computed_once_and_told",
    ),
    Reading(
        "logprobs / top_logprobs",
        "top_logprobs without logprobs is 400",
        "absent logprobs allowed",
        "OpenAI's shapes; top_logprobs without logprobs is 400",
        "http_frontend/test_chat.py::test_logprobs_have_openais_shape",
    ),
    Reading(
        "max_completion_tokens and max_tokens together",
        "the first wins",
        "the first wins",
        "the first wins, told; errors name the field that was used",
        "http_frontend/test_readings.py::test_max_completion_tokens_wins_and_is_told",
    ),
    Reading(
        "unknown model",
        "404",
        "answered anyway; a colon is read as an adapter selector",
        "404 with the list; `--unknown-model accept`",
        "http_frontend/test_readings.py::test_unknown_models",
    ),
    Reading(
        "a served name with a colon (`org/model:v2`)",
        "fine",
        "may be taken for an adapter",
        "exact match first, so fine",
        "http_frontend/test_readings.py::test_a_served_name_with_a_colon",
    ),
    Reading(
        "user",
        "accepted, ignored",
        "accepted, ignored",
        "accepted; told as ignored",
        "http_frontend/test_readings.py::test_user_is_told",
    ),
    Reading(
        "suffix (completions)",
        "ignored or 400, by model",
        "only with a completion template",
        "fill-in-the-middle where the vocabulary has tokens for it, else 400 that says so",
        "http_frontend/test_readings.py::test_a_suffix_is_honoured_or_refused_by_the_vocabulary",
    ),
    Reading(
        "stream_options without stream",
        "400",
        "ignored",
        "400; `--stray-stream-options ignore` tells instead",
        "http_frontend/test_readings.py::test_stray_stream_options",
    ),
    Reading(
        "continuous_usage_stats without include_usage",
        "ignored",
        "honoured",
        "honoured",
        "http_frontend/test_readings.py::test_continuous_usage_without_include_usage",
    ),
    Reading(
        "seed",
        "per-request generator; same result not promised across batches",
        "dropped unless deterministic mode is on",
        "draws keyed by (seed, position): the batch does not change them",
        "model_runner/test_runner.py::test_seeded_draws_are_the_same_alone_and_in_a_batch",
    ),
    Reading(
        "parallel_tool_calls: false",
        "cut after generation, partly a grammar",
        "shapes the constraint only",
        "a constraint always: nothing is generated to be thrown away",
        "integration/test_tools.py::test_a_choice_is_a_constraint",
    ),
    Reading("tools: []", "400", "accepted", "400", "http_frontend/test_tools.py::test_bad_tools_are_named"),
    Reading(
        "tool_choice without tools",
        "400",
        "400 for required",
        "400 save for none",
        "http_frontend/test_tools.py::test_bad_tools_are_named",
    ),
    Reading(
        "wrong tool parser for the model",
        "calls arrive as content",
        "the same",
        "loud warning at start, `auto` by template and vocabulary, shown in `/v1/contract`",
        "integration/test_tools.py::test_the_contract_says_which_parsers_run_and_why",
    ),
    Reading(
        "chat_template_kwargs key that the template never reads",
        "dropped silently",
        "passed, unused",
        "told in the header; 400 in strict mode",
        "http_frontend/test_chat.py::test_adjustments_from_behind_are_told_and_strict_refuses_them",
    ),
    Reading(
        "which chat template renders",
        "flag, processor (only without tools), tokenizer, fallback; tools can change which",
        "flag, regex over the whole model path, checkpoint",
        "flag, regex over the last component of the name as given, checkpoint; announced at start, shown in `/v1/contract`, "
        "told in each answer whose checkpoint template it shadows",
        "tokenizer_manager/test_template_choice.py::test_the_order_of_sources",
    ),
    Reading(
        "add_generation_prompt + continue_final_message",
        "400 together",
        "no such field",
        "400 together",
        "http_frontend/test_chat.py::test_bad_fields_are_named_and_reach_nobody",
    ),
    Reading(
        "logit_bias memory",
        "flat lists, by biased entries",
        "dense batch x vocabulary, rebuilt when the batch changes",
        "dense rows only for requests that carry a bias, updated by row, freed with the last one; a metric",
        "model_runner/test_runner.py::test_bias_bytes_exist_only_while_a_row_carries_a_bias",
    ),
    Reading(
        "logit_bias, min_p under speculative decoding",
        "400",
        "expanded per draft token",
        "honoured: each draw of a draft goes through the whole pipeline",
        "model_runner/test_runner.py::test_several_draws_of_a_row_are_those_of_single_steps",
    ),
    Reading(
        "response_format schema with an unsupported keyword",
        "another backend takes over, and whitespace changes with it",
        "the backend's error",
        "400 that names keyword and path; one backend, one whitespace rule",
        "scheduler/grammar/test_backend.py::test_a_refusal_names_the_keyword_and_the_field_and_is_remembered",
    ),
    Reading(
        "embeddings on a generation server",
        "404: not mounted",
        "400 that says how to start",
        "404: embeddings are not built",
        "http_frontend/test_readings.py::test_embeddings_are_not_there",
    ),
    Reading(
        "adapters (`lora_path`, `base:adapter`)",
        "honoured with --lora-modules",
        "honoured with --lora-paths",
        "rejected: adapters are not built",
        "http_frontend/test_contract.py::test_a_rejected_field_is_a_400_that_names_it",
    ),
    Reading(
        "stop string inside reasoning",
        "cuts it, content is null",
        "cuts it",
        "stop strings apply to content; `stop_in_reasoning` switches it",
        "integration/test_tools.py::test_stop_strings_spare_reasoning_unless_asked",
    ),
    Reading(
        "error after the first frame",
        "`data:` error, `[DONE]`",
        "the same",
        "the same, then the connection closes; no choice claims `stop`",
        "http_frontend/test_chat.py::test_an_error_after_the_first_frame",
    ),
    Reading(
        "one API key with many requests",
        "no limit per key",
        "no limit per key",
        "no limit; with `--max-running-per-key` 429 and Retry-After beyond it",
        "http_frontend/test_recovery.py::test_a_key_that_has_enough_running_gets_429",
    ),
    Reading(
        "/health",
        "a flag: a stuck engine is healthy",
        "a deep probe: a busy engine is sick",
        "progress: stuck is sick, busy is healthy; `/health_generate` goes through every process and jumps the queue",
        "http_frontend/test_health.py::test_pending_without_steps_is_stuck",
    ),
    Reading(
        "/metrics",
        "always",
        "only with a flag",
        "always (`--no-metrics` turns it off)",
        "http_frontend/test_metrics.py::test_no_metrics_when_switched_off",
    ),
    Reading(
        "see the rendered prompt",
        "routes exist, 403 unless started for scale-out",
        "none",
        "`/v1/chat/completions/render`, always",
        "http_frontend/test_tokens.py::test_render_shows_what_would_be_sent_and_generates_nothing",
    ),
    Reading(
        "error body",
        "nested, `code` an integer",
        "flat on OpenAI routes, nested in streams",
        "nested everywhere, OpenAI's types and codes",
        "http_frontend/test_chat.py::test_a_refusal_is_a_response_of_its_own_even_for_a_stream",
    ),
    Reading(
        "scheduler process dies",
        "all requests fail, server stops with exit status 0",
        "the whole tree is killed",
        "restarted; requests in flight resume",
        "http_frontend/test_recovery.py::test_a_dead_scheduler_is_a_pause_and_the_text_goes_on_where_it_was",
    ),
    Reading(
        "unknown field, removed field (`guided_json`)",
        "ignored silently",
        "ignored silently",
        "unknown fields are told, with the one that may have been meant; guided_* are honoured as aliases",
        "http_frontend/test_contract.py::test_unknown_fields_are_told_with_what_was_meant",
    ),
)
