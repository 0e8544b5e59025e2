"""What a start decides about parsers, and how it says so."""

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from function_call.deployment import decide_parsers
from runtime.engine_config import EngineConfig
from runtime.server_args import ServerArgs
from runtime.start_error import StartError
from tests.http_frontend.fakes import make_config

HERMES = 'Write <tool_call>\n{"name": <function name>, "arguments": <object>}\n</tool_call>'


def configured(folder: Path, tokens: tuple[str, ...] = (), **flags: Any) -> EngineConfig:
    """A configuration whose vocabulary holds the letters and these added tokens."""
    added = [{"id": 3 + id, "content": token, "special": True} for id, token in enumerate(tokens)]
    document = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "[": 2}, "merges": []}, "added_tokens": added}
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(document))
    config = make_config(folder)
    config = msgspec.structs.replace(config, args=ServerArgs(**flags))
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, tokenizer_file=str(file)))


def test_auto_becomes_a_name_with_its_reason(tmp_path: Path) -> None:
    config = configured(tmp_path, ("<tool_call>",), tool_call_parser="auto")
    decided = decide_parsers(config, HERMES)
    assert decided.tool_call_parser == "hermes" and decided.reasoning_parser is None
    ((what, why),) = decided.decisions
    assert what == "tool_call_parser = hermes" and "the chat template holds '<tool_call>'" in why
    assert decided.marker_tokens == ("<tool_call>",)
    assert decided.parser_warnings == ()


def test_auto_that_finds_nothing_runs_without_and_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        decided = decide_parsers(configured(tmp_path, tool_call_parser="auto"), "{{ messages }}")
    assert decided.tool_call_parser is None
    assert "--tool-call-parser auto" in caplog.text and "neither the chat template nor the vocabulary" in caplog.text


def test_a_parser_that_does_not_fit_the_model_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        decided = decide_parsers(configured(tmp_path, tool_call_parser="mistral", reasoning_parser="kimi"), HERMES)
    assert (decided.tool_call_parser, decided.reasoning_parser) == ("mistral", "kimi")
    assert len(decided.parser_warnings) == 2
    assert all(warning in caplog.text for warning in decided.parser_warnings)


def test_older_vocabularies_are_told_from_new_ones_by_their_tokens(tmp_path: Path) -> None:
    new = decide_parsers(configured(tmp_path, ("[TOOL_CALLS]", "[ARGS]"), tool_call_parser="mistral"), None)
    assert new.marker_tokens == ("[TOOL_CALLS]", "[ARGS]")
    old = decide_parsers(configured(tmp_path, ("[TOOL_CALLS]",), tool_call_parser="mistral"), None)
    assert old.marker_tokens == ("[TOOL_CALLS]",)


@pytest.mark.parametrize("flags", [{"tool_call_parser": "no-such"}, {"reasoning_parser": "no-such"}])
def test_an_unknown_name_stops_the_start(tmp_path: Path, flags: dict[str, Any]) -> None:
    with pytest.raises(StartError, match="no-such"):
        decide_parsers(configured(tmp_path, **flags), None)


def test_without_parsers_nothing_is_read(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    assert decide_parsers(config, HERMES) is config


def test_a_plugin_that_can_not_be_read_stops_the_start(tmp_path: Path) -> None:
    config = configured(tmp_path, tool_call_parser="auto", tool_parser_plugin=str(tmp_path / "none.py"))
    with pytest.raises(StartError, match="--tool-parser-plugin"):
        decide_parsers(config, None)
