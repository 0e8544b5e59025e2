"""A name, a separator and a JSON object, inside a section of calls: DeepSeek V3 and Kimi K2."""

import re
from dataclasses import dataclass

from function_call.machinery.blocks import Layout, close_call, read_text
from function_call.machinery.format import ToolFormat
from function_call.machinery.json_calls import read_object
from function_call.machinery.reader import CutShort, Markers, Step, Unreadable
from function_call.machinery.session import Session
from function_call.machinery.tagged_calls import tool_name
from function_call.machinery.wire import Wire

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
DEEPSEEK_MARKERS = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)

SECTION_BEGIN = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
SECTION_END = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
KIMI_CALL, KIMI_ARGUMENTS, KIMI_CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
KIMI_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::(?P<index>[0-9]+))?")


@dataclass(frozen=True)
class DeepSeekCall:
    """V3: a type word, then the name up to the newline and a fenced object. V3.1: the name, then the object.

    Both are read whichever is configured: models served with the other's template write it.
    """

    def read(self, session: Session, marker: str) -> Step[None]:
        reader = session.reader
        text, _ = yield from reader.text_until(SEPARATOR_MARKER)
        yield from reader.skip_blanks()
        if (yield from reader.peek()) != "{":
            rest, _ = yield from reader.text_until(BRACE)
            reader.unread("{")
            text = rest.partition("\n")[0] if text.strip() == "function" else text
        name = tool_name(text)
        session.start(name)
        yield from read_object(reader, session.arguments)
        session.end()
        yield from reader.skip_blanks()
        if (yield from reader.at(FENCE)):
            yield from reader.skip_blanks()
        yield from close_call(session, CALL_END_MARKER)


SEPARATOR_MARKER = Markers(SEPARATOR)
BRACE = Markers("{")
FENCE = Markers("```")
CALL_END_MARKER = Markers(CALL_END)


def kimi_call(session: Session, marker: str) -> Step[None]:
    """The id holds the name. It is passed on if it is well formed; history must show the model the ids that it wrote."""
    reader = session.reader
    text, _ = yield from reader.text_until(KIMI_ARGUMENTS_MARKER)
    identifier = text.strip()
    found = KIMI_ID.fullmatch(identifier)
    if not found:
        raise Unreadable
    name = tool_name(found["name"])
    yield from reader.skip_blanks()
    if not (yield from reader.peek()):
        raise CutShort
    session.start(name, identifier if identifier == f"functions.{name}:{found['index']}" else None)
    yield from read_object(reader, session.arguments)
    session.end()
    yield from close_call(session, KIMI_END_MARKER)


KIMI_ARGUMENTS_MARKER = Markers(KIMI_ARGUMENTS)
KIMI_END_MARKER = Markers(KIMI_CALL_END)

DEEPSEEK = Layout(
    DeepSeekCall().read,
    opens=(CALL_BEGIN,),
    group_opens=(CALLS_BEGIN,),
    group_closes=(CALLS_END,),
    stray_closes=(CALL_END,),
)
KIMI = Layout(
    kimi_call,
    opens=(KIMI_CALL,),
    group_opens=SECTION_BEGIN,
    group_closes=SECTION_END,
    stray_closes=(KIMI_CALL_END,),
)

SECTIONED_JSON = (
    ToolFormat(
        "deepseekv3",
        lambda session: read_text(session, DEEPSEEK),
        DEEPSEEK_MARKERS,
        "DeepSeek V3, V3-0324, R1, R1-0528",
        aliases=("deepseek_v3",),
        wire=Wire(
            open=CALLS_BEGIN,
            begin=f"{CALL_BEGIN}function{SEPARATOR}{{name}}\n```json\n",
            end=f"\n```{CALL_END}",
            separator="\n",
            close=CALLS_END,
            trigger=CALLS_BEGIN,
        ),
        quirks="the fence may stand in a string; a missing section is forgiven",
        detect=((CALLS_BEGIN, "```json"),),
    ),
    ToolFormat(
        "deepseekv31",
        lambda session: read_text(session, DEEPSEEK),
        DEEPSEEK_MARKERS,
        "DeepSeek V3.1, V3.1-Terminus, V3.2-Exp",
        aliases=("deepseek_v31",),
        wire=Wire(
            open=CALLS_BEGIN,
            begin=f"{CALL_BEGIN}{{name}}{SEPARATOR}",
            end=CALL_END,
            close=CALLS_END,
            trigger=CALLS_BEGIN,
        ),
        quirks="calls in the older spelling are read too",
        detect=((CALLS_BEGIN,),),
    ),
    ToolFormat(
        "kimi_k2",
        lambda session: read_text(session, KIMI),
        (*SECTION_BEGIN, *SECTION_END, KIMI_CALL, KIMI_ARGUMENTS, KIMI_CALL_END),
        "Kimi K2, K2-Thinking, K2.5",
        wire=Wire(
            open=SECTION_BEGIN[0],
            begin=f"{KIMI_CALL}functions.{{name}}:{{digits}}{KIMI_ARGUMENTS}",
            end=KIMI_CALL_END,
            close=SECTION_END[0],
            trigger=SECTION_BEGIN[0],
        ),
        id_style="kimi_k2",
        quirks="ids are `functions.NAME:N`, the model's own or counted through the conversation",
        detect=((SECTION_BEGIN[0],),),
    ),
)
