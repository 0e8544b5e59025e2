"""XML-ish calls: Qwen3-Coder's `<function=...>`, `<invoke name="...">` in several dresses, and MiniCPM's `<function name=...>`."""

from function_call.machinery.arguments import ValueStyle
from function_call.machinery.blocks import Layout, close_call, read_text
from function_call.machinery.format import STRINGS_GROW, Parse, ToolFormat
from function_call.machinery.json_calls import CallShape, read_calls
from function_call.machinery.reader import CutShort, Markers, Step, Unreadable
from function_call.machinery.session import Session
from function_call.machinery.tagged_calls import ElementCall
from function_call.machinery.wire import Wire


def function_elements(opening: str, closing: str, style: ValueStyle) -> Parse:
    """`<function=NAME>` with `<parameter=KEY>` in it, in a block that may be missing."""
    call = ElementCall(
        ("<parameter=",), ("</parameter>",), ("</function>",), header="plain", loose_value_ends=True, style=style
    )
    layout = Layout(
        call.read,
        opens=("<function=",),
        group_opens=(opening,),
        group_closes=(closing,),
        stray_closes=("</function>",),
    )
    return lambda session: read_text(session, layout)


def marked_invokes(mark: str, group: str, stripped: tuple[str, ...] = (), *, fences: bool = False) -> Parse:
    """DeepSeek's self-typed elements; the mark inside every tag is one token, and sometimes missing."""
    call = ElementCall(
        (f"<{mark}parameter", "<parameter"),
        (f"</{mark}parameter>", "</parameter>"),
        (f"</{mark}invoke>", "</invoke>"),
        typed=True,
        json_body=True,
    )
    layout = Layout(
        call.read,
        opens=(f"<{mark}invoke", "<invoke"),
        group_opens=(f"<{mark}{group}>", f"<{group}>"),
        group_closes=(f"</{mark}{group}>", f"</{group}>"),
        alone=False,
        stripped=stripped,
        fences=fences,
    )
    return lambda session: read_text(session, layout)


def marked_wire(mark: str, group: str) -> Wire:
    return Wire(
        open=f"\n\n<{mark}{group}>\n",
        begin=f'<{mark}invoke name="{{name}}">\n',
        end=f"</{mark}invoke>\n",
        style="deepseek_xml",
        close=f"</{mark}{group}>",
        trigger=f"<{mark}{group}>",
    )


MINIMAX_M2 = Layout(
    ElementCall(("<parameter",), ("</parameter>",), ("</invoke>",)).read,
    opens=("<invoke",),
    group_opens=("<minimax:tool_call>",),
    group_closes=("</minimax:tool_call>",),
    alone=False,
)


def dots_object(session: Session, marker: str) -> Step[None]:
    yield from read_calls(session, CallShape())


DOTS = Layout(
    ElementCall(("<parameter",), ("</parameter>",), ("</invoke>",), style=ValueStyle(trim="blanks")).read,
    opens=("<invoke",),
    group_opens=("<dots_function_call>",),
    group_closes=("</dots_function_call>",),
    alone=False,
    other_body=dots_object,
)
MINICPM = Layout(
    ElementCall(
        ("<param",),
        ("</param>",),
        ("</function>",),
        cdata=True,
        wrapper=("<arguments>", "</arguments>"),
        style=ValueStyle(trim="blanks", entities=True),
    ).read,
    opens=("<function name", "<functionname", "<function\u0120name"),
)
STEP_CALL = ElementCall(
    ("<steptml:parameter",), ("</steptml:parameter>",), ("</steptml:invoke>",), style=ValueStyle(trim="blanks")
)
STEP_MARKERS = (
    "<｜tool_calls_begin｜>",
    "<｜tool_calls_end｜>",
    "<｜tool_call_begin｜>",
    "<｜tool_call_end｜>",
    "<｜tool_sep｜>",
)
STEP_HEAD = Markers("function")
STEP_SEPARATOR = Markers("<｜tool_sep｜>")
STEP_INVOKE = Markers("<steptml:invoke")
STEP_END = Markers("<｜tool_call_end｜>")


def step_call(session: Session, marker: str) -> Step[None]:
    """A type word and a separator, then the element."""
    reader = session.reader
    for expected in (STEP_HEAD, STEP_SEPARATOR, STEP_INVOKE):
        yield from reader.skip_blanks()
        if not (yield from reader.at(expected)):
            raise Unreadable if (yield from reader.peek()) else CutShort
    yield from STEP_CALL.read(session, marker)
    yield from close_call(session, STEP_END)


STEP = Layout(
    step_call,
    opens=STEP_MARKERS[2:3],
    group_opens=STEP_MARKERS[:1],
    group_closes=STEP_MARKERS[1:2],
    stray_closes=STEP_MARKERS[3:4],
)
QWEN_MARKERS = ("<tool_call>", "</tool_call>")
QWEN_WIRE = Wire(
    begin="<tool_call>\n<function={name}>\n",
    end="\n</function>\n</tool_call>",
    style="qwen_xml",
    separator="\n",
    trigger="<tool_call>\n<function=",
)
QWEN = function_elements("<tool_call>", "</tool_call>", ValueStyle(trim="newline"))

XML_ELEMENTS = (
    ToolFormat(
        "qwen3_coder",
        QWEN,
        QWEN_MARKERS,
        "Qwen3-Coder, Qwen3.5, Qwen3.6, Nemotron 3",
        aliases=("qwen3_xml",),
        wire=QWEN_WIRE,
        streaming=STRINGS_GROW,
        quirks="one newline at each end of a value is framing; missing wrappers and ends are forgiven",
        detect=(("<function=", "<parameter=", "<tool_call>"),),
    ),
    ToolFormat(
        "step3p5",
        QWEN,
        QWEN_MARKERS,
        "Step-3.5-Flash, Step-3.7-Flash",
        wire=QWEN_WIRE,
        streaming=STRINGS_GROW,
        quirks="as qwen3_coder; Python's True, False and None",
    ),
    ToolFormat(
        "mimo",
        function_elements("<tool_call>", "</tool_call>", ValueStyle(entities=True)),
        QWEN_MARKERS,
        "MiMo-V2",
        wire=QWEN_WIRE,
        streaming=STRINGS_GROW,
        quirks="values are not on lines of their own; HTML entities are decoded",
    ),
    ToolFormat(
        "seed_oss",
        function_elements("<seed:tool_call>", "</seed:tool_call>", ValueStyle()),
        ("<seed:tool_call>", "</seed:tool_call>"),
        "Seed-OSS",
        wire=Wire(
            begin="<seed:tool_call>\n<function={name}>\n",
            end="\n</function>\n</seed:tool_call>",
            style="qwen_xml",
            separator="\n",
            trigger="<seed:tool_call>\n<function=",
        ),
        streaming=STRINGS_GROW,
        quirks="values are Python's str() of the argument",
        detect=(("<seed:tool_call>",),),
    ),
    ToolFormat(
        "deepseekv32",
        marked_invokes("｜DSML｜", "function_calls"),
        ("｜DSML｜",),
        "DeepSeek V3.2, V3.2-Speciale",
        aliases=("deepseek_v32",),
        wire=marked_wire("｜DSML｜", "function_calls"),
        streaming=STRINGS_GROW,
        quirks="an attribute says which values are text; tags without the mark and JSON bodies are read",
        detect=(("｜DSML｜", "function_calls"),),
    ),
    ToolFormat(
        "deepseekv4",
        marked_invokes("｜DSML｜", "tool_calls", fences=True),
        ("｜DSML｜",),
        "DeepSeek V4",
        aliases=("deepseek_v4",),
        wire=marked_wire("｜DSML｜", "tool_calls"),
        streaming=STRINGS_GROW,
        quirks="as deepseekv32; nothing is a call inside a code fence",
        detect=(("｜DSML｜", "tool_calls"),),
    ),
    ToolFormat(
        "gigachat35",
        marked_invokes("｜GCML｜", "tool_calls", ("<|message_sep|>", "</s>")),
        ("｜GCML｜", "<|message_sep|>"),
        "GigaChat 3.5",
        wire=Wire(
            open="<｜GCML｜tool_calls>\n",
            begin='<｜GCML｜invoke name="{name}">\n',
            end="</｜GCML｜invoke>\n",
            style="elements",
            element=('<｜GCML｜parameter name="{key}" string="{is_string}">', "</｜GCML｜parameter>\n"),
            close="</｜GCML｜tool_calls>",
            trigger="<｜GCML｜tool_calls>",
        ),
        streaming=STRINGS_GROW,
        quirks="as deepseekv32 with another mark; end-of-turn markers are removed",
        detect=(("｜GCML｜",),),
    ),
    ToolFormat(
        "minimax-m2",
        lambda session: read_text(session, MINIMAX_M2),
        ("<minimax:tool_call>", "</minimax:tool_call>"),
        "MiniMax-M2, M2.1, M2.5, M2.7",
        aliases=("minimax_m2",),
        wire=Wire(
            open="\n<minimax:tool_call>\n",
            begin='<invoke name="{name}">\n',
            end="</invoke>\n",
            style="minimax_xml",
            close="</minimax:tool_call>",
            trigger="<minimax:tool_call>",
        ),
        streaming=STRINGS_GROW,
        quirks="quotes of names are optional",
        detect=(("<minimax:tool_call>",),),
    ),
    ToolFormat(
        "dots",
        lambda session: read_text(session, DOTS),
        ("<dots_function_call>", "</dots_function_call>"),
        "dots.llm",
        wire=Wire(
            open="<dots_function_call>\n",
            begin='<invoke name="{name}">\n',
            end="</invoke>\n",
            style="elements",
            element=('<parameter name="{key}">', "</parameter>\n"),
            close="</dots_function_call>",
            trigger="<dots_function_call>",
        ),
        streaming=STRINGS_GROW,
        quirks="elements or one JSON object; values are trimmed",
        detect=(("<dots_function_call>",),),
    ),
    ToolFormat(
        "minicpm5",
        lambda session: read_text(session, MINICPM),
        ("<function", "</function>", "<param", "</param>"),
        "MiniCPM5, MiniCPM-4 with the XML template",
        wire=Wire(
            begin='<function name="{name}">',
            end="</function>",
            style="elements",
            element=('<param name="{key}">', "</param>"),
            separator="\n",
            trigger="<function name=",
        ),
        streaming=STRINGS_GROW,
        quirks="entities and CDATA; attributes without their space are forgiven",
        detect=(("<function name=", "<param name="),),
    ),
    ToolFormat(
        "step3",
        lambda session: read_text(session, STEP),
        STEP_MARKERS,
        "Step3",
        wire=Wire(
            open="<｜tool_calls_begin｜>\n",
            begin='<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">\n',
            end="</steptml:invoke><｜tool_call_end｜>\n",
            style="elements",
            element=('<steptml:parameter name="{key}">', "</steptml:parameter>\n"),
            close="<｜tool_calls_end｜>",
            trigger="<｜tool_calls_begin｜>",
        ),
        streaming=STRINGS_GROW,
        quirks="values are trimmed; empty bodies are calls without arguments",
        detect=(("<｜tool_calls_begin｜>", "steptml"),),
    ),
)
