"""Every endpoint that has a body, and its table."""

from http_frontend.contract.chat import CHAT
from http_frontend.contract.completions import COMPLETIONS
from http_frontend.contract.field import Record
from http_frontend.contract.native import GENERATE
from http_frontend.contract.tokens import ABORT, DETOKENIZE, PARSE_FUNCTION_CALL, SEPARATE_REASONING, TOKENIZE

ENDPOINTS: dict[str, Record] = {
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/render": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/completions/render": COMPLETIONS,
    "/generate": GENERATE,
    "/tokenize": TOKENIZE,
    "/v1/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
    "/v1/detokenize": DETOKENIZE,
    "/abort_request": ABORT,
    "/parse_function_call": PARSE_FUNCTION_CALL,
    "/separate_reasoning": SEPARATE_REASONING,
}

# One table each: the routes that share a body are told once.
TABLES: dict[str, Record] = {
    path: record for path, record in ENDPOINTS.items() if not path.endswith("/render") and not path.startswith("/v1/t")
    and not path.startswith("/v1/d")
}  # fmt: skip
