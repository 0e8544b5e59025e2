"""JSON objects in a pair of tags: Hermes, Qwen and their relatives."""

from function_call.machinery.format import ToolFormat
from function_call.machinery.json_blocks import json_blocks
from function_call.machinery.json_calls import CallShape
from function_call.machinery.wire import Wire

TOOL_CALL = ("<tool_call>",)
TOOL_CALL_END = ("</tool_call>",)
THINK = ("<think>", "</think>")
WIRE = Wire(
    begin='<tool_call>\n{"name": "{name}", "arguments": ', end="}\n</tool_call>", separator="\n", trigger="<tool_call>"
)
MARKERS = (*TOOL_CALL, *TOOL_CALL_END)

TAGGED_JSON = (
    ToolFormat(
        "hermes",
        json_blocks(TOOL_CALL, TOOL_CALL_END),
        MARKERS,
        "Hermes 2 Pro, 3 and 4; Qwen2.5 and Qwen3; SmolLM; fine-tunes on the Hermes tool prompt",
        wire=WIRE,
        quirks="end tag, `arguments` and even their object form are optional; trailing commas and Python quotes are read",
        detect=(("<tool_call>", '{"name": ', '"arguments": '), ("<tool_call>", '"name"', '"arguments"')),
    ),
    ToolFormat(
        "qwen25",
        json_blocks(TOOL_CALL, TOOL_CALL_END),
        MARKERS,
        "Qwen2.5, QwQ, Qwen3 (not Coder), Qwen3-VL, Qwen3-Next",
        aliases=("qwen",),
        wire=WIRE,
        quirks="as hermes",
    ),
    ToolFormat(
        "trinity",
        json_blocks(TOOL_CALL, TOOL_CALL_END, stripped=THINK),
        (*MARKERS, *THINK),
        "Arcee Trinity",
        wire=WIRE,
        quirks="think tags are removed and what stands between them is content: calls occur inside",
    ),
    ToolFormat(
        "ernie45",
        json_blocks(TOOL_CALL, TOOL_CALL_END, stripped=("<response>", "</response>")),
        (*MARKERS, "<response>", "</response>"),
        "ERNIE 4.5 Thinking",
        wire=WIRE,
        quirks="`<response>` tags are removed from content",
        detect=(("<tool_call>", "<response>"),),
    ),
    ToolFormat(
        "granite4",
        json_blocks(TOOL_CALL, TOOL_CALL_END),
        MARKERS,
        "Granite 4.0",
        wire=WIRE,
        quirks="`arguments` may be a JSON text inside a string",
        detect=(("<tool_call>", "<|start_of_role|>"),),
    ),
    ToolFormat(
        "longcat",
        json_blocks(("<longcat_tool_call>",), ("</longcat_tool_call>",)),
        ("<longcat_tool_call>", "</longcat_tool_call>"),
        "LongCat-Flash",
        wire=Wire(
            begin='<longcat_tool_call>\n{"name": "{name}", "arguments": ',
            end="}\n</longcat_tool_call>",
            separator="\n",
            trigger="<longcat_tool_call>",
        ),
        detect=(("<longcat_tool_call>",),),
    ),
    ToolFormat(
        "granite-20b-fc",
        json_blocks(("<function_call>",)),
        ("<function_call>",),
        "Granite 20B Function Calling",
        wire=Wire(
            begin='<function_call> {"name": "{name}", "arguments": ', end="}", separator="\n", trigger="<function_call>"
        ),
        quirks="no end tag",
        detect=(("<function_call>",),),
    ),
    ToolFormat(
        "interns1",
        json_blocks(
            ("<|action_start|>",),
            ("<|action_end|>",),
            shape=CallShape(arguments=("parameters", "arguments")),
            after_open=("<|plugin|>",),
        ),
        ("<|action_start|>", "<|plugin|>", "<|action_end|>"),
        "InternLM 2, 2.5 and 3, Intern-S1",
        aliases=("internlm",),
        wire=Wire(
            begin='<|action_start|><|plugin|>\n{"name": "{name}", "parameters": ',
            end="}<|action_end|>",
            trigger="<|action_start|><|plugin|>",
        ),
        quirks="a blank may stand between the two opening markers; `<|interpreter|>` is no function call",
        detect=(("<|action_start|>", "<|plugin|>"),),
    ),
)
