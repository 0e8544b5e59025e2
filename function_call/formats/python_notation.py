"""Calls in Python's notation, and Gemma's braces."""

import re
from dataclasses import replace

from function_call.machinery.blocks import Layout, close_call, read_text
from function_call.machinery.brace_calls import BraceCall
from function_call.machinery.format import ToolFormat
from function_call.machinery.json_calls import CallShape, read_calls, read_list
from function_call.machinery.python_calls import read_python_lines, read_python_list
from function_call.machinery.reader import Markers, Step
from function_call.machinery.session import Session
from function_call.machinery.wire import Wire

LFM2_END = Markers("<|tool_call_end|>")
OLMO_END = Markers("</function_calls>")


def python_list(session: Session, marker: str) -> Step[None]:
    yield from read_python_list(session)


def lfm2_block(session: Session, marker: str) -> Step[None]:
    """A list of Python calls, or of JSON objects, or either without the brackets."""
    reader = session.reader
    yield from reader.skip_blanks()
    bracket = (yield from reader.peek()) == "["
    if bracket:
        yield from reader.next()
        yield from reader.skip_blanks()
    if (yield from reader.peek()) == "{":
        yield from read_list(session, CallShape()) if bracket else read_calls(session, CallShape())
    else:
        yield from read_python_list(session) if bracket else read_python_lines(session)
    yield from close_call(session, LFM2_END)


def olmo_block(session: Session, marker: str) -> Step[None]:
    yield from read_python_lines(session)
    yield from close_call(session, OLMO_END)


PYTHON_TAGS = ("<|python_start|>", "<|python_end|>")
PYTHONIC = Layout(
    python_list, opens=("[",), follows=("[", re.compile(r"[\w\s]")), stripped=(*PYTHON_TAGS, "<|eom|>", "<|eot|>")
)
LFM2 = Layout(lfm2_block, opens=("<|tool_call_start|>",), stray_closes=("<|tool_call_end|>",))
OLMO = Layout(olmo_block, opens=("<function_calls>",), stray_closes=("</function_calls>",))
PYTHONIC_WIRE = Wire(open="[", begin="{name}(", end=")", style="python", separator=", ", close="]")

GEMMA_QUOTE = '<|"|>'
GEMMA = Layout(BraceCall(GEMMA_QUOTE, ("<tool_call|>",)).read, opens=("<|tool_call>",), stray_closes=("<tool_call|>",))
FUNCTION_GEMMA = Layout(
    BraceCall("<escape>", ("<end_function_call>",), typed=True).read,
    opens=("<start_function_call>",),
    stray_closes=("<end_function_call>",),
)

PYTHON_NOTATION = (
    ToolFormat(
        "pythonic",
        lambda session: read_text(session, PYTHONIC),
        PYTHON_TAGS,
        "Llama 3.2 1B and 3B, ToolACE, Gemma 3 and others with a pythonic template",
        wire=PYTHONIC_WIRE,
        quirks="no markers: a list of calls with keyword arguments anywhere in the text",
    ),
    ToolFormat(
        "llama4_pythonic",
        lambda session: read_text(session, PYTHONIC),
        PYTHON_TAGS,
        "Llama 4 Scout and Maverick",
        wire=replace(PYTHONIC_WIRE, open="<|python_start|>[", close="]<|python_end|>", trigger="<|python_start|>"),
        quirks="as pythonic; the python markers are removed",
        detect=(("<|python_start|>",),),
    ),
    ToolFormat(
        "lfm2",
        lambda session: read_text(session, LFM2),
        ("<|tool_call_start|>", "<|tool_call_end|>"),
        "LFM2, LFM2.5",
        wire=Wire(
            open="<|tool_call_start|>[",
            begin="{name}(",
            end=")",
            style="python",
            separator=", ",
            close="]<|tool_call_end|>",
            trigger="<|tool_call_start|>",
        ),
        quirks="Python or JSON between the markers; quotes that nobody escaped are part of the string",
        detect=(("<|tool_call_start|>",),),
    ),
    ToolFormat(
        "olmo3",
        lambda session: read_text(session, OLMO),
        ("<function_calls>", "</function_calls>"),
        "OLMo 3",
        wire=Wire(
            open="<function_calls>\n",
            begin="{name}(",
            end=")",
            style="python",
            separator="\n",
            close="\n</function_calls>",
            trigger="<function_calls>",
        ),
        quirks="one call a line; JSON literals",
        detect=(("<function_calls>",),),
    ),
    ToolFormat(
        "gemma4",
        lambda session: read_text(session, GEMMA),
        ("<|tool_call>", "<tool_call|>", GEMMA_QUOTE),
        "Gemma 4",
        wire=Wire(begin="<|tool_call>call:{name}", end="<tool_call|>", style="gemma", trigger="<|tool_call>"),
        quirks="bare words are strings; keys may be quoted",
        detect=(("<|tool_call>", "<tool_call|>"),),
    ),
    ToolFormat(
        "functiongemma",
        lambda session: read_text(session, FUNCTION_GEMMA),
        ("<start_function_call>", "<end_function_call>", "<escape>"),
        "FunctionGemma",
        quirks="a quoted value of a parameter that is no string is read by its declared type",
        detect=(("<start_function_call>",),),
    ),
)
