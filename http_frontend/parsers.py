"""The parsers of this deployment: which formats are in force, and a fresh parser for each choice."""

from collections.abc import Mapping, Sequence
from typing import Any

from function_call.machinery.format import ToolFormat
from function_call.registry import Registry, visible_special_tokens
from function_call.stream import OutputParser, ParserOptions
from protocol.outputs import Admitted
from protocol.sampling import ReasoningFormat
from runtime.engine_config import EngineConfig


class Parsers:
    """Looks names up once, at start; an unknown parser name stops the start there."""

    def __init__(self, config: EngineConfig) -> None:
        registry = Registry()
        if config.args.tool_parser_plugin is not None:
            registry = registry.with_plugin(config.args.tool_parser_plugin)
        self.registry = registry
        self.tool_format = registry.tool_format(config.tool_call_parser) if config.tool_call_parser else None
        self.reasoning = registry.reasoning_format(config.reasoning_parser) if config.reasoning_parser else None

    def visible(self, tool_format: ToolFormat | None) -> tuple[str, ...]:
        """Special tokens that the parsers of a request must see."""
        return visible_special_tokens(tool_format, self.reasoning)

    def reasoning_format(self) -> ReasoningFormat | None:
        """The markers of reasoning as the processes behind need them."""
        return None if self.reasoning is None else self.reasoning.protocol_format

    def new_parser(
        self,
        tool_format: ToolFormat | None,
        tools: Sequence[Mapping[str, Any]] | None,
        admitted: Admitted,
        options: ParserOptions,
    ) -> OutputParser | None:
        """A parser for one choice; None if the text is content as it comes."""
        if tool_format is None and self.reasoning is None:
            return None
        span = admitted.reasoning_span
        opened = span is not None and span.prompt_opened
        return OutputParser(self.reasoning, tool_format, tools, prompt_opens_reasoning=opened, options=options)
