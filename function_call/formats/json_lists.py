"""JSON lists, or lines, of calls inside a block."""

from dataclasses import replace

from function_call.machinery.blocks import Layout, read_text
from function_call.machinery.format import ToolFormat
from function_call.machinery.json_blocks import JsonBlocks, json_blocks
from function_call.machinery.json_calls import CallShape, read_calls, read_object
from function_call.machinery.reader import Markers, Step, Unreadable
from function_call.machinery.session import Session
from function_call.machinery.tagged_calls import tool_name
from function_call.machinery.wire import Wire

TOOL_CALLS = ("<tool_calls>",)
TOOL_CALLS_END = ("</tool_calls>",)
THINK = ("<think>", "</think>")
COHERE = CallShape(name="tool_name", arguments=("parameters", "arguments"))
ACTION = ("<|START_ACTION|>", "<|END_ACTION|>")
COHERE_FRAMES = (
    "<|START_TEXT|>",
    "<|END_TEXT|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
)
COHERE_WIRE = Wire(
    open="<|START_ACTION|>[\n",
    begin='    {"tool_call_id": "{digits}", "tool_name": "{name}", "parameters": ',
    end="}",
    separator=",\n",
    close="\n]<|END_ACTION|>",
    trigger="<|START_ACTION|>",
)

MISTRAL_NAME_ENDS = Markers("[ARGS]", "[CALL_ID]", "{")
MISTRAL_ARGS = Markers("[ARGS]", "{")


def list_wire(opening: str, closing: str) -> Wire:
    return Wire(
        open=opening,
        begin='{"name": "{name}", "arguments": ',
        end="}",
        separator=", ",
        close=closing,
        trigger=opening.split("[")[0],
    )


def mistral_calls(session: Session, marker: str) -> Step[None]:
    """A list of objects (tokenizers up to v7), or NAME [`[CALL_ID]` id] `[ARGS]` object (v11 and later)."""
    reader = session.reader
    if (yield from reader.peek()) == "]":
        yield from reader.next()
    yield from reader.skip_blanks()
    if (yield from reader.peek()) in ("[", "{"):
        yield from read_calls(session, CallShape(identifier="id"))
        return
    text, end = yield from reader.text_until(MISTRAL_NAME_ENDS)
    name = tool_name(text)
    identifier: str | None = None
    if end == "[CALL_ID]":
        written, end = yield from reader.text_until(MISTRAL_ARGS)
        written = written.strip()
        identifier = written if len(written) == 9 and written.isascii() and written.isalnum() else None
    if end == "{":
        reader.unread(end)
    yield from reader.skip_blanks()
    if (yield from reader.peek()) not in ("{", "n", '"'):
        raise Unreadable
    session.start(name, identifier)
    yield from read_object(reader, session.arguments)
    session.end()


MISTRAL = Layout(mistral_calls, opens=("[TOOL_CALLS",), stripped=("</s>",))

JSON_LISTS = (
    ToolFormat(
        "mistral",
        lambda session: read_text(session, MISTRAL),
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        "Mistral 7B v0.3 and later, Mixtral, Nemo, Large, Small, Ministral, Magistral, Devstral, Pixtral",
        wire=Wire(begin="[TOOL_CALLS]{name}[ARGS]", end="", trigger="[TOOL_CALLS]"),
        wire_without=("[ARGS]", replace(list_wire("[TOOL_CALLS][", "]"), trigger="[TOOL_CALLS]")),
        id_style="mistral",
        quirks="ids are 9 letters or digits, the model's own where it comes in time; list and compact forms",
        detect=(("[TOOL_CALLS]",),),
    ),
    ToolFormat(
        "hunyuan_a13b",
        json_blocks(TOOL_CALLS, TOOL_CALLS_END, opaque=THINK, prefix="助手："),
        (*TOOL_CALLS, *TOOL_CALLS_END),
        "Hunyuan-A13B",
        wire=list_wire("<tool_calls>[", "]</tool_calls>"),
        quirks="calls inside `<think>` are none; the prefix 助手： of plain answers is removed",
        detect=(("<tool_calls>", "助手："),),
    ),
    ToolFormat(
        "jamba",
        json_blocks(TOOL_CALLS, TOOL_CALLS_END),
        (*TOOL_CALLS, *TOOL_CALLS_END),
        "Jamba 1.5 to 2",
        wire=replace(list_wire("<tool_calls>[\n    ", "\n]</tool_calls>"), separator=",\n    "),
        detect=(("<tool_calls>", "<|bom|>"),),
    ),
    ToolFormat(
        "minimax",
        json_blocks(TOOL_CALLS, TOOL_CALLS_END, opaque=THINK),
        (*TOOL_CALLS, *TOOL_CALLS_END),
        "MiniMax-M1, MiniMax-Text-01",
        wire=Wire(
            open="<tool_calls>\n",
            begin='{"name": "{name}", "arguments": ',
            end="}",
            separator="\n",
            close="\n</tool_calls>",
            trigger="<tool_calls>",
        ),
        quirks="one object a line; calls inside `<think>` are none; doubled closing braces are forgiven",
        detect=(("<tool_calls>", "<beginning_of_sentence>"),),
    ),
    ToolFormat(
        "cohere_command4",
        json_blocks(ACTION[:1], ACTION[1:], shape=COHERE, stripped=COHERE_FRAMES),
        (*ACTION, *COHERE_FRAMES),
        "Command A+ and later",
        wire=COHERE_WIRE,
        quirks="text frames are removed; the model's `tool_call_id` is a counter, not the call's id",
        frames_turn=True,
        detect=(("<|START_ACTION|>", "<|START_TEXT|>"),),
    ),
    ToolFormat(
        "cohere_command3",
        json_blocks(ACTION[:1], ACTION[1:], shape=COHERE, stripped=COHERE_FRAMES),
        (*ACTION, *COHERE_FRAMES),
        "Command R7B, Command A (2025)",
        wire=COHERE_WIRE,
        quirks="as cohere_command4 with response frames",
        frames_turn=True,
        detect=(("<|START_ACTION|>",),),
    ),
    ToolFormat(
        "apertus2509",
        JsonBlocks(("<|tools_prefix|>",), ("<|tools_suffix|>",), shape=CallShape(keyed=True)).parse,
        ("<|tools_prefix|>", "<|tools_suffix|>"),
        "Apertus 2509",
        aliases=("apertus",),
        wire=Wire(
            open="<|tools_prefix|>[",
            begin='{"{name}": ',
            end="}",
            separator=", ",
            close="]<|tools_suffix|>",
            trigger="<|tools_prefix|>",
        ),
        quirks="each object has one key, the tool's name; null arguments are none",
        detect=(("<|tools_prefix|>",),),
    ),
)
