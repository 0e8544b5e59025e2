"""Every tool-call format that Candor knows."""

from function_call.machinery.format import ToolFormat

TOOL_FORMATS: tuple[ToolFormat, ...] = ()
