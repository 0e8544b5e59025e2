"""The parsers of this deployment: which formats are in force, and a fresh parser for each choice."""

from collections.abc import Mapping, Sequence
from typing import Any

from function_call.deployment import make_registry
from function_call.detection import fitted
from function_call.machinery.format import ToolFormat
from function_call.reasoning.format import ReasoningEntry
from function_call.registry import UnknownParser, visible_special_tokens
from function_call.stream import OutputParser, ParserOptions
from protocol.errors import RequestError
from protocol.outputs import Admitted
from protocol.sampling import ReasoningFormat, SamplingParameters
from runtime.engine_config import EngineConfig
from runtime.start_error import StartError


class Parsers:
    """Looks names up once, at start: StartError for an unknown parser name, or a plugin that can't be used."""

    def __init__(self, config: EngineConfig) -> None:
        tools, reasoning = config.tool_call_parser, config.reasoning_parser
        self.registry = make_registry(config.args.tool_parser_plugin)
        self.marker_tokens = config.marker_tokens
        self.tool_format: ToolFormat | None = None
        self.reasoning: ReasoningEntry | None = None
        try:
            if tools:
                self.tool_format = fitted(self.registry, self.registry.tool_format(tools), self.marker_tokens)
            if reasoning:
                self.reasoning = self.registry.reasoning_format(reasoning)
        except UnknownParser as error:
            raise StartError(str(error)) from error

    @property
    def framing(self) -> ToolFormat | None:
        """What reads an answer to a request without tools: a format that frames the whole turn, if no reasoning parser
        takes the frames off."""
        framed = self.tool_format is not None and self.tool_format.frames_turn and self.reasoning is None
        return self.tool_format if framed else None

    def visible(self, tool_format: ToolFormat | None) -> tuple[str, ...]:
        """Special tokens that the parsers of a request must see."""
        return visible_special_tokens(tool_format, self.reasoning)

    def reasoning_format(self) -> ReasoningFormat | None:
        """The markers of reasoning as the processes behind need them."""
        return None if self.reasoning is None else self.reasoning.protocol_format

    def budget_format(self, sampling: SamplingParameters) -> ReasoningFormat | None:
        """The same, for a request with a thinking budget: RequestError if there are none to close reasoning with. None without
        a budget: an answer that is not split goes on as it comes."""
        if sampling.thinking_budget is None:
            return None
        markers = self.reasoning_format()
        if markers is None:
            raise RequestError(
                "thinking_token_budget: the reasoning parser in force has no markers to close reasoning with",
                param="thinking_token_budget",
                code="unsupported_parameter",
            )
        return markers

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
