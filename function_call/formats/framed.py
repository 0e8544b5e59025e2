"""Formats that frame the whole turn in messages or blocks: gpt-oss (Harmony), Muse, Inkling, Kimi K3.

Read by the tool format alone, reasoning goes nowhere; with the reasoning format of the same name before it, what arrives
here is plain content and framed calls.
"""

import re

from function_call.machinery.arguments import ArgumentsWriter, ValueStyle
from function_call.machinery.blocks import Layout, read_group
from function_call.machinery.coerce import ANY_JSON, STRING_ONLY
from function_call.machinery.format import ToolFormat
from function_call.machinery.json_calls import CallShape, ObjectCall, read_object
from function_call.machinery.kind_blocks import INKLING
from function_call.machinery.messages import HARMONY, MUSE, Header
from function_call.machinery.reader import LONGEST_NAME, CutShort, Markers, Step, Unreadable
from function_call.machinery.session import Session
from function_call.machinery.tagged_calls import ElementCall, tool_name
from function_call.machinery.wire import Wire


def harmony(session: Session) -> Step[None]:
    reader = session.reader

    def body(header: Header) -> Step[None]:
        """An object; the call ends where it ends, whatever marker follows."""
        name = tool_name(header.recipient.removeprefix("functions."))
        yield from reader.skip_blanks()
        if (yield from reader.peek()) not in ("{", '"', "n"):
            raise Unreadable if (yield from reader.peek()) else CutShort
        session.start(name)
        yield from read_object(reader, session.arguments)
        session.end()
        yield from reader.skip_blanks()
        yield from reader.at(HARMONY.end_markers)

    def call(header: Header) -> Step[None]:
        yield from session.attempt(body(header), header.text)

    yield from HARMONY.read(reader, session.content, session.discard, call)


ATEM_OPEN = Markers("<atem:function_calls>")
ATEM = Layout(
    ElementCall(("<atem:parameter",), ("</atem:parameter>",), ("</atem:invoke>",), doubled_names=True).read,
    opens=("<atem:invoke",),
    group_opens=ATEM_OPEN.all,
    group_closes=("</atem:function_calls>",),
)


def muse(session: Session) -> Step[None]:
    reader = session.reader

    def body() -> Step[None]:
        yield from reader.skip_blanks()
        if not (yield from reader.at(ATEM_OPEN)):
            raise Unreadable if (yield from reader.peek()) else CutShort
        yield from read_group(session, ATEM)
        yield from reader.skip_blanks()
        yield from reader.at(MUSE.end_markers)

    def call(header: Header) -> Step[None]:
        yield from session.attempt(body(), header.text)

    yield from MUSE.read(reader, session.content, session.discard, call)


def inkling_call(session: Session, header: str) -> Step[None]:
    """The object repeats the name of the header; if it says another, this is no call."""
    name = tool_name(header)
    shape = CallShape(arguments=("args", "arguments", "parameters"))
    yield from session.reader.skip_blanks()
    yield from ObjectCall(session, shape, lambda written: written == name).read()
    yield from session.reader.skip_blanks()
    yield from session.reader.at(INKLING.end_markers)


def inkling(session: Session) -> Step[None]:
    def call(name: str, opening: str) -> Step[None]:
        yield from session.attempt(inkling_call(session, name), opening)

    yield from INKLING.read(session.reader, session.content, session.discard, call)


K3_OPEN, K3_CLOSE, K3_SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"
K3_BORDERS = Markers(K3_OPEN, K3_CLOSE, "<|end_of_msg|>")
K3_VALUE_END = Markers(K3_CLOSE)
K3_HEADER_END = Markers(K3_SEPARATOR)
K3_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


def k3_attributes(header: str) -> dict[str, str]:
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in K3_ATTRIBUTE.findall(header)}


def k3_tag(session: Session) -> Step[str]:
    """The next tag after blanks, as `open NAME ...` or `close NAME`; "" at the end of the answer."""
    reader = session.reader
    yield from reader.skip_blanks()
    marker = yield from reader.at(K3_BORDERS)
    if not marker:
        if (yield from reader.peek()):
            raise Unreadable
        return ""
    if marker not in (K3_OPEN, K3_CLOSE):
        return marker
    text, _ = yield from reader.text_until(K3_HEADER_END, 4 * LONGEST_NAME)
    return f"{'open' if marker == K3_OPEN else 'close'} {text.strip()}"


def k3_call(session: Session, header: str) -> Step[None]:
    """The rest of a call, its opening tag read."""
    reader = session.reader
    name = tool_name(k3_attributes(header).get("tool", ""))
    session.start(name)
    arguments = ArgumentsWriter(session, name, ValueStyle())
    whole = False
    while True:
        tag = yield from k3_tag(session)
        if tag == "close call":
            break
        if not tag:
            raise CutShort
        attributes = k3_attributes(tag)
        if tag.startswith("open json") and not whole:
            yield from reader.skip_blanks()
            yield from read_object(reader, session.arguments)
            whole = True
            if (yield from k3_tag(session)) != "close json":
                raise Unreadable
        elif tag.startswith("open argument ") and "key" in attributes and not whole:
            types = STRING_ONLY if attributes.get("type") == "string" else ANY_JSON
            value = arguments.value(attributes["key"], types)
            if not (yield from reader.until(K3_VALUE_END, value.write)):
                raise CutShort
            value.finish()
            text, _ = yield from reader.text_until(K3_HEADER_END)
            if text.strip() != "argument":
                raise Unreadable
        else:
            raise Unreadable
    if not whole:
        arguments.close()
    session.end()


def k3_tools(session: Session) -> Step[None]:
    """The tools channel. Its end may be missing: it serves as a stop string."""
    calls = 0
    while True:
        tag = yield from k3_tag(session)
        if tag.startswith("open call "):
            yield from k3_call(session, tag)
            calls += 1
        elif calls and tag in ("", "close tools"):
            return
        else:
            raise Unreadable if tag else CutShort


def kimi_k3(session: Session) -> Step[None]:
    reader = session.reader
    write = session.content
    while True:
        marker = yield from reader.until(K3_BORDERS, write)
        if not marker:
            return
        if marker not in (K3_OPEN, K3_CLOSE):
            continue
        reader.record(marker)
        try:
            text, _ = yield from reader.text_until(K3_HEADER_END)
        except CutShort:
            reader.recorded()
            return
        except Unreadable:
            session.content(reader.recorded())
            continue
        opening = reader.recorded()
        channel = text.strip()
        write = session.discard if marker == K3_OPEN and channel == "think" else session.content
        if marker == K3_OPEN and channel == "tools":
            yield from session.attempt(k3_tools(session), opening)
        elif channel not in ("response", "think", "message", "tools"):
            session.content(opening)


FRAMED = (
    ToolFormat(
        "gpt-oss",
        harmony,
        (HARMONY.start, HARMONY.channel, HARMONY.message, "<|constrain|>", *HARMONY.ends),
        "gpt-oss 20B and 120B",
        aliases=("openai",),
        wire=Wire(
            begin="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>",
            end="<|call|>",
            leads=("<|start|>assistant",),
            separator="<|start|>assistant",
            trigger="<|channel|>commentary to=",
        ),
        quirks="one call per message; the recipient may stand before or after the channel; dotted names are kept",
        frames_turn=True,
        detect=(("<|channel|>", "<|constrain|>"),),
    ),
    ToolFormat(
        "muse",
        muse,
        (MUSE.start, MUSE.message, *MUSE.ends),
        "Muse Glimmer",
        wire=Wire(
            leads=("<|start|>assistant",),
            begin=' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n',
            end="</atem:invoke>\n</atem:function_calls>",
            style="elements",
            element=('<atem:parameter name="{key}">', "</atem:parameter>\n"),
            separator="<|eom|><|start|>assistant",
        ),
        aliases=("muse_glimmer",),
        quirks="messages to `self` are reasoning, to `user` content",
        frames_turn=True,
        detect=(("<atem:function_calls>",),),
    ),
    ToolFormat(
        "inkling",
        inkling,
        (INKLING.open, INKLING.reasoning, INKLING.text, INKLING.call, *INKLING.ends),
        "Inkling",
        wire=Wire(
            begin='<|message_model|>{name}<|content_invoke_tool_json|>{"name": "{name}", "args": ',
            end="}<|end_message|>",
            trigger="<|message_model|>{name}<|content_invoke_tool_json|>",
        ),
        quirks="the name stands twice; if the two differ the block is content",
        frames_turn=True,
        detect=(("<|content_invoke_tool_json|>",),),
    ),
    ToolFormat(
        "kimi_k3",
        kimi_k3,
        (K3_OPEN, K3_CLOSE, K3_SEPARATOR, "<|end_of_msg|>"),
        "Kimi K3",
        wire=Wire(
            leads=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
            open="<|open|>tools<|sep|>",
            begin='<|open|>call tool="{name}" index="{digits}"<|sep|>',
            end="<|close|>call<|sep|>",
            style="kimi_k3_xml",
            close="<|close|>tools<|sep|><|close|>message<|sep|>",
            trigger="<|open|>tools<|sep|>",
        ),
        id_style="kimi_k3",
        quirks="ids are `NAME:N`; values say their type; an end that the cut took away is dropped",
        frames_turn=True,
        detect=(("<|open|>", "<|sep|>"),),
    ),
)
