"""The fallback of constrained calls: a JSON array of `{"name": ..., "parameters": {...}}` and nothing else.

It works with every model, and costs accuracy: the model is pushed off its own format. So it serves only where the format
has no constrained form, or a schema can't be written in it.
"""

from function_call.machinery.format import ToolFormat
from function_call.machinery.json_blocks import JsonBlocks
from function_call.machinery.json_calls import CallShape
from function_call.machinery.wire import Wire

JSON_ARRAY = ToolFormat(
    "json_array",
    JsonBlocks((), shape=CallShape(arguments=("parameters", "arguments")), bare_start="[{").parse,
    (),
    "any model, for constrained calls alone",
    wire=Wire(open="[", begin='{"name": "{name}", "parameters": ', end="}", separator=", ", close="]"),
    quirks="the fallback of required and named calls",
)
