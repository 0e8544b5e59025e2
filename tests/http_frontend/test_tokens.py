"""Tokenize, detokenize, render, and the admin questions."""

from typing import Any

import pytest

from protocol.control import ControlRequest
from protocol.errors import ErrorInfo
from protocol.requests import Adjustment, ChatPrompt, RenderRequest, TextPrompt, TokenizeRequest
from tests.http_frontend.fakes import Served, chat_body


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
def test_tokenize_in_both_engines_shapes(served: Served, path: str) -> None:
    body = served.post(path, {"model": "tiny", "prompt": "abc", "return_token_strs": True}).json()
    assert body == {"count": 3, "max_model_len": 512, "tokens": [1, 2, 3], "token_strs": ["a", "b", "c"]}
    assert served.post(path, {"text": ["a", "b"]}).json()["count"] == [3, 3]
    served.post(path, {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": False})
    prompts = [message.prompt for message in served.ring.sent if isinstance(message, TokenizeRequest)]
    assert prompts[:3] == [TextPrompt("abc"), TextPrompt("a"), TextPrompt("b")]
    assert isinstance(prompts[3], ChatPrompt) and not prompts[3].add_generation_prompt


def test_detokenize_answers_under_both_names(served: Served) -> None:
    assert served.post("/detokenize", {"tokens": [1, 2, 3]}).json() == {"prompt": "abc", "text": "abc"}
    assert served.post("/v1/detokenize", {"tokens": [[1], [2]]}).json()["text"] == ["abc", "abc"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/abort_request", {}, "rid"),
        ("/parse_function_call", {"text": "x"}, "tool_call_parser"),
        ("/separate_reasoning", {"text": "x", "reasoning_parser": "no-such"}, "reasoning_parser"),
    ],
)
def test_bad_bodies_are_named(served: Served, path: str, body: Any, param: str) -> None:
    response = served.post(path, body)
    assert response.status_code in (400, 404) and response.json()["error"]["param"] == param


def test_tokenize_reads_tools_and_tells_as_a_chat_does(served: Served) -> None:
    served.ring.adjustments = (Adjustment("chat_template_kwargs.x", "ignored", "the template never reads it"),)
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "custom", "custom": {"name": "t"}}]}
    assert "chat_template_kwargs.x" in served.post("/tokenize", body).headers["x-candor-adjustments"]
    (asked,) = [message.prompt for message in served.ring.sent if isinstance(message, TokenizeRequest)]
    served.chat(**body)
    (request,) = served.ring.requests
    assert isinstance(asked, ChatPrompt) and isinstance(request.prompt, ChatPrompt)
    assert asked.tools is not None and asked.tools == request.prompt.tools


def test_a_refused_question_is_an_error(served: Served) -> None:
    served.ring.refusal = ErrorInfo("no template", param="messages")
    response = served.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]})
    assert response.status_code == 400 and response.json()["error"]["message"] == "no template"


def test_render_shows_what_would_be_sent_and_generates_nothing(served: Served) -> None:
    body = served.post("/v1/chat/completions/render", chat_body(top_p=0.5, max_tokens=4)).json()
    assert body["prompt"] == "<p>" and body["token_ids"] == [1, 2] and body["count"] == 2
    assert body["chat_template"] == "chatml" and body["sampling_params"] == {"temperature": 0.0}
    assert body["cached_tokens"] == 2
    assert not served.ring.requests
    assert body["messages"] == [{"content": 2**64 + 1}]
    (render,) = [message for message in served.ring.sent if isinstance(message, RenderRequest)]
    assert render.request.sampling.top_p == 0.5
    batch = served.post("/v1/completions/render", {"prompt": ["a", "b"]}).json()
    assert len(batch["data"]) == 2


def test_a_clients_id_can_be_rendered_twice_at_a_time(served: Served) -> None:
    for _ in range(2):
        served.post("/v1/chat/completions/render", chat_body(request_id="mine"))
    asked = {message.request.request_id for message in served.ring.sent if isinstance(message, RenderRequest)}
    assert len(asked) == 2


def test_flush_cache_reaches_every_scheduler(served: Served) -> None:
    assert served.call("POST", "/flush_cache").json() == {"success": True, "message": "flushed"}
    assert served.call("GET", "/flush_cache?timeout=1").status_code == 200
    modes = [message.arguments["mode"] for message in served.ring.sent if isinstance(message, ControlRequest)]
    assert modes == ["unlocked", "deferred"]
    assert served.call("POST", "/flush_cache?timeout=x").status_code == 400
    served.ring.down.add(("scheduler", 0))
    assert served.call("POST", "/flush_cache").status_code == 503


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info(served: Served, path: str) -> None:
    info = served.call("GET", path).json()
    assert info["served_model_name"] == ["tiny", "org/tiny:v2"] and info["device"] == "cpu"
    assert info["internal_states"][0]["ok"] and info["status"] == "ok" and info["silent"] == []


def test_model_and_load(served: Served) -> None:
    assert served.call("GET", "/get_model_info").json() == served.call("GET", "/model_info").json()
    served.front.board.slot(3).update(running=2, waiting=3, total_pages=10, free_pages=4, cached_pages=2)
    (row,) = served.call("GET", "/v1/loads").json()["loads"]
    assert (row["num_running_reqs"], row["num_waiting_reqs"], row["num_used_tokens"]) == (2, 3, 96)
    assert served.call("GET", "/get_load").json() == [
        {"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 3, "num_tokens": 96}
    ]
    assert served.call("GET", "/version").json() == {"version": "0.1.0"}


def test_models_are_listed_and_found_by_exact_name(served: Served) -> None:
    listed = served.call("GET", "/v1/models").json()["data"]
    assert [card["id"] for card in listed] == ["tiny", "org/tiny:v2"]
    assert listed[0]["max_model_len"] == 512
    assert served.call("GET", "/v1/models/org/tiny:v2").json()["id"] == "org/tiny:v2"
    missing = served.call("GET", "/v1/models/other")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"


def test_parsers_on_their_own(served: Served) -> None:
    text = 'Hi <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    body = served.post("/parse_function_call", {"text": text, "tool_call_parser": "hermes", "tools": []}).json()
    assert body["normal_text"].strip() == "Hi"
    assert body["calls"] == [{"name": "f", "arguments": '{"a": 1}', "parameters": '{"a": 1}', "tool_index": 0}]
    split = served.post("/separate_reasoning", {"text": "<think>why</think>so", "reasoning_parser": "qwen3"}).json()
    assert split == {"reasoning_text": "why", "text": "so"}
