"""MiniMax-M3: nested elements, each tag behind one namespace token."""

from function_call.machinery.blocks import Layout, read_text
from function_call.machinery.format import ToolFormat
from function_call.machinery.nested_elements import NestedElements
from function_call.machinery.reader import CutShort, Markers, Step, Unreadable
from function_call.machinery.session import Session
from function_call.machinery.wire import Wire

NAMESPACE = "]<]minimax[>["
ELEMENTS = NestedElements(Markers(NAMESPACE))


def block(session: Session, marker: str) -> Step[None]:
    """`NS<tool_call>` invokes `NS</tool_call>`."""
    reader = session.reader
    if (yield from ELEMENTS.tag(reader)) != "tool_call":
        raise Unreadable
    calls = 0
    while True:
        yield from reader.skip_blanks()
        if not (yield from reader.at(ELEMENTS.namespace)):
            if calls:
                return
            raise Unreadable if (yield from reader.peek()) else CutShort
        tag = yield from ELEMENTS.tag(reader)
        if tag == "/tool_call" and calls:
            return
        yield from ELEMENTS.read_invoke(session, tag)
        calls += 1


LAYOUT = Layout(block, opens=(NAMESPACE,))

NESTED_XML = (
    ToolFormat(
        "minimax-m3",
        lambda session: read_text(session, LAYOUT),
        (NAMESPACE,),
        "MiniMax-M3",
        aliases=("minimax_m3",),
        wire=Wire(
            open=f"{NAMESPACE}<tool_call>\n",
            begin=f'{NAMESPACE}<invoke name="{{name}}">',
            end=f"{NAMESPACE}</invoke>\n",
            style="minimax_m3_xml",
            close=f"{NAMESPACE}</tool_call>",
            trigger=f"{NAMESPACE}<tool_call>",
        ),
        streaming="strings as they grow, objects and arrays when they close",
        quirks="arguments are nested elements; a tag without the namespace token is data",
        detect=((NAMESPACE,),),
    ),
)
