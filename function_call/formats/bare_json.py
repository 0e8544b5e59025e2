"""JSON calls that begin at a word, at one special token, or at nothing but their own bracket."""

import re

from function_call.machinery.blocks import Layout, close_call, read_text
from function_call.machinery.format import ToolFormat
from function_call.machinery.json_blocks import JsonBlocks, bare, json_blocks
from function_call.machinery.json_calls import CallShape, read_list
from function_call.machinery.reader import CutShort, Markers, Step, Unreadable
from function_call.machinery.session import Session
from function_call.machinery.wire import Wire

PARAMETERS_FIRST = CallShape(arguments=("parameters", "arguments"))
XLAM_TAG = Markers("TOOL_CALLS]")
XLAM_LIST = Markers("[")
XLAM_CLOSES = ("</tool_call>",)
FENCE = "```json"
FENCE_END = Markers("```")
XLAM_SHAPE = bare(CallShape())
GIGACHAT_HEADS = ("function call<|role_sep|>", "<|function_call|>")


def xlam_list(session: Session, marker: str) -> Step[None]:
    """A list, bare or after one of three announcements."""
    reader = session.reader
    tagged = marker == "[" and (yield from reader.at(XLAM_TAG))
    if marker != "[" or tagged:
        yield from reader.skip_blanks()
        if not (yield from reader.at(XLAM_LIST)):
            raise Unreadable if (yield from reader.peek()) else CutShort
    yield from read_list(session, XLAM_SHAPE)
    if marker == FENCE:
        yield from close_call(session, FENCE_END)


XLAM = Layout(
    xlam_list,
    opens=("[", FENCE, "<tool_call>"),
    follows=("[", re.compile(r"[{T\s]")),
    stray_closes=XLAM_CLOSES,
    opaque=("<think>", "</think>"),
)


def granite_wire(marker: str) -> Wire:
    """3.0 has a special token, later versions write the tag as text."""
    return Wire(
        open=f"{marker}[",
        begin='{"name": "{name}", "arguments": ',
        end="}",
        separator=", ",
        close="]",
        trigger=marker,
    )


BARE_JSON = (
    ToolFormat(
        "llama3",
        JsonBlocks(
            ("<|python_tag|>",),
            shape=PARAMETERS_FIRST,
            stripped=("<|eom_id|>", "<|eot_id|>"),
            bare_start="{[",
        ).parse,
        ("<|python_tag|>",),
        "Llama 3.1, 3.2, 3.3; Llama 4 with the JSON template",
        aliases=("llama3_json", "llama4_json"),
        wire=Wire(begin='{"name": "{name}", "parameters": ', end="}", separator="; "),
        streaming="arguments as they grow, once name and arguments show that the JSON is a call",
        quirks="without the tag a call must open the answer; JSON that is no call stays content",
        detect=(("<|python_tag|>",), ('"parameters": dictionary of argument name',)),
    ),
    ToolFormat(
        "granite",
        JsonBlocks(("<|tool_call|>", "<tool_call>"), bare_start="[").parse,
        ("<|tool_call|>", "<tool_call>"),
        "Granite 3.0 to 3.3",
        wire=granite_wire("<|tool_call|>"),
        wire_without=("<|tool_call|>", granite_wire("<tool_call>")),
        quirks="the marker may be missing at the start of the answer",
        detect=(("<|tool_call|>",),),
    ),
    ToolFormat(
        "gigachat3",
        json_blocks(GIGACHAT_HEADS, shape=CallShape(), stripped=("<|message_sep|>", "</s>")),
        ("<|role_sep|>", "<|function_call|>", "<|message_sep|>"),
        "GigaChat 3",
        wire=Wire(
            begin='<|function_call|>{"name": "{name}", "arguments": ',
            end="}",
            trigger="<|function_call|>",
            single=True,
        ),
        quirks="one call per answer; `<|message_sep|>` ends the text before it",
        detect=(("function call<|role_sep|>",), ("<|function_call|>", "<|role_sep|>")),
    ),
    ToolFormat(
        "phi4_mini_json",
        json_blocks(("functools",)),
        ("functools",),
        "Phi-4-mini (functools prompt)",
        wire=Wire(
            open="functools[",
            begin='{"name": "{name}", "arguments": ',
            end="}",
            separator=", ",
            close="]",
            trigger="functools[",
        ),
        quirks="the word `functools` announces a list; no end marker",
        detect=(("functools",),),
    ),
    ToolFormat(
        "xlam",
        lambda session: read_text(session, XLAM),
        ("<tool_call>", "</tool_call>", "[TOOL_CALLS]"),
        "xLAM 2",
        wire=Wire(open="[", begin='{"name": "{name}", "arguments": ', end="}", separator=", ", close="]"),
        streaming="arguments as they grow, once the first object shows that the list holds calls",
        quirks="a list of calls alone, in a json fence, after `[TOOL_CALLS]` or in tags; other lists stay content",
        detect=(("xlam",),),
    ),
)
