"""Which parsers a server runs: decided once at start, from the flags, the chat template and the vocabulary."""

import logging
from collections.abc import Collection
from pathlib import Path

import msgspec

from function_call.detection import Detection, choose_reasoning, choose_tool_format, warnings
from function_call.machinery.format import ToolFormat
from function_call.reasoning.format import ReasoningEntry
from function_call.registry import PluginError, Registry, UnknownParser
from runtime.engine_config import EngineConfig
from runtime.start_error import StartError
from runtime.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


def make_registry(plugin: str | Path | None) -> Registry:
    """The formats of the project, and those of --tool-parser-plugin; StartError if that file can't be used."""
    try:
        return Registry() if plugin is None else Registry().with_plugin(plugin)
    except PluginError as error:
        raise StartError(f"--tool-parser-plugin: {error}") from error


def decide_parsers(config: EngineConfig, template: str | None) -> EngineConfig:
    """The configuration with names in place of `auto`, each choice among its decisions; StartError for an unknown name.

    `template` is the text of the chat templates in force. A parser that does not fit the model is no error, since the user
    may know better, but the log and `GET /v1/contract` say so.
    """
    tool_name, reasoning_name = config.args.tool_call_parser, config.args.reasoning_parser
    if tool_name is None and reasoning_name is None:
        return config
    registry = make_registry(config.args.tool_parser_plugin)
    vocabulary, added = _tokens(config.model.tokenizer_file)
    try:
        tools = choose_tool_format(registry, tool_name, template, vocabulary)
        reasoning = choose_reasoning(registry, reasoning_name, template, vocabulary)
    except UnknownParser as error:
        raise StartError(str(error)) from error
    told = warnings(tools.chosen, reasoning.chosen, template, vocabulary)
    for warning in told:
        logger.warning(warning)
    decisions = list(config.decisions)
    asked: tuple[tuple[str, str | None, Detection[ToolFormat] | Detection[ReasoningEntry]], ...] = (
        ("tool_call_parser", tool_name, tools),
        ("reasoning_parser", reasoning_name, reasoning),
    )
    for flag, name, detection in asked:
        if name is not None:
            decisions.append((f"{flag} = {_name(detection)}", detection.reason))
            if detection.chosen is None:
                logger.warning("--%s %s: %s", flag.replace("_", "-"), name, detection.reason)
    markers: tuple[str, ...] = ()
    if tools.chosen is not None:
        older = tools.chosen.wire_without
        markers = (*tools.chosen.markers, *(older[:1] if older is not None else ()))
    return msgspec.structs.replace(
        config,
        tool_call_parser=_name(tools),
        reasoning_parser=_name(reasoning),
        marker_tokens=tuple(marker for marker in dict.fromkeys(markers) if marker in added),
        parser_warnings=tuple(told),
        decisions=tuple(decisions),
    )


def _name(detection: Detection[ToolFormat] | Detection[ReasoningEntry]) -> str | None:
    return detection.chosen.name if detection.chosen is not None else None


def _tokens(tokenizer_file: str) -> tuple[Collection[str], Collection[str]]:
    """All tokens as the vocabulary writes them, and those that are matched in a text before it is split."""
    try:
        vocabulary = Vocabulary.load(tokenizer_file)
    except (OSError, ValueError) as error:
        raise StartError(f"the tokenizer can't be read: {error}") from error
    every = {id: vocabulary.token(id) for id in range(vocabulary.size)}
    return frozenset(every.values()), frozenset(token for id, token in every.items() if vocabulary.is_added(id))
