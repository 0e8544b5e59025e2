"""A name, then keys and values in tags of their own: GLM and what followed it."""

from function_call.machinery.arguments import ValueStyle
from function_call.machinery.blocks import Layout, read_text
from function_call.machinery.format import STRINGS_GROW, Parse, ToolFormat
from function_call.machinery.json_calls import CallShape, read_calls
from function_call.machinery.reader import Markers, Step
from function_call.machinery.session import Session
from function_call.machinery.tagged_calls import KeyValueCall
from function_call.machinery.wire import Wire

GLM_MARKERS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
GLM_WIRE = Wire(begin="<tool_call>{name}", end="</tool_call>", style="glm_xml", separator="\n", trigger="<tool_call>")
LITERAL_NEWLINE = "\\n"


def glm(style: ValueStyle, *, text_after: bool = True) -> Parse:
    call = KeyValueCall(
        "<arg_key>",
        "<arg_value>",
        "</arg_value>",
        ("</tool_call>",),
        key_close="</arg_key>",
        name_ends=("\n", LITERAL_NEWLINE),
        style=style,
    )
    layout = Layout(call.read, opens=("<tool_call>",), stray_closes=("</tool_call>",), text_after_call=text_after)
    return lambda session: read_text(session, layout)


def hunyuan_markers(suffix: str) -> tuple[str, ...]:
    names = ("tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value")
    return tuple(
        f"<{slash}{name}{suffix}>" for name in names for slash in ("", "/") if (slash, name) != ("/", "tool_sep")
    )


def hunyuan(suffix: str = "") -> Parse:
    """The shipping tokenizer may append one suffix to the name of every marker (`<tool_call:opensource>`)."""
    call = KeyValueCall(
        f"<arg_key{suffix}>",
        f"<arg_value{suffix}>",
        f"</arg_value{suffix}>",
        (f"</tool_call{suffix}>",),
        key_close=f"</arg_key{suffix}>",
        name_ends=(f"<tool_sep{suffix}>",),
    )
    layout = Layout(
        call.read,
        opens=(f"<tool_call{suffix}>",),
        group_opens=(f"<tool_calls{suffix}>",),
        group_closes=(f"</tool_calls{suffix}>",),
        stray_closes=(f"</tool_call{suffix}>",),
    )
    return lambda session: read_text(session, layout)


def hunyuan_wire(suffix: str) -> Wire | None:
    """xgrammar writes argument tags without a suffix only: the suffixed dialect has no constrained form."""
    if suffix:
        return None
    return Wire(
        open="<tool_calls>\n",
        begin="<tool_call>{name}<tool_sep>",
        end="</tool_call>\n",
        style="glm_xml",
        close="</tool_calls>",
        trigger="<tool_calls>",
    )


K2_CALL = KeyValueCall(
    "<ifm|arg_key>",
    "<ifm|arg_value>",
    "</ifm|arg_value>",
    ("</ifm|tool_call>",),
    key_close="</ifm|arg_key>",
    type_tags=("<ifm|arg_type>", "</ifm|arg_type>"),
    style=ValueStyle(undeclared_json=True),
)
K2_END = Markers("</ifm|tool_call>")


def k2_call(session: Session, marker: str) -> Step[None]:
    """Tags or, in the other dialect, an object or a list of them."""
    reader = session.reader
    yield from reader.skip_blanks()
    if (yield from reader.peek()) in ("{", "["):
        yield from read_calls(session, CallShape())
        yield from reader.skip_blanks()
        yield from reader.at(K2_END)
    else:
        yield from K2_CALL.read(session, marker)


K2 = Layout(
    k2_call,
    opens=("<ifm|tool_call>",),
    group_opens=("<ifm|tool_calls>",),
    group_closes=("</ifm|tool_calls>",),
    stray_closes=("</ifm|tool_call>",),
)
SOLAR_MARKERS = (
    "<|tool_call:start|>",
    "<|tool_call:end|>",
    "<|tool_arg:start|>",
    "<|tool_arg:value|>",
    "<|tool_arg:end|>",
)
SOLAR_CALL = KeyValueCall(
    SOLAR_MARKERS[2],
    SOLAR_MARKERS[3],
    SOLAR_MARKERS[4],
    SOLAR_MARKERS[1:2],
    next_opens=SOLAR_MARKERS[:1],
    value_ends=(SOLAR_MARKERS[2], SOLAR_MARKERS[1], SOLAR_MARKERS[0]),
    style=ValueStyle(first_wins=True),
)
SOLAR = Layout(SOLAR_CALL.read, opens=SOLAR_MARKERS[:1], stray_closes=SOLAR_MARKERS[1:2], text_after_call=False)

KEY_VALUE_TAGS = (
    ToolFormat(
        "glm45",
        glm(ValueStyle(undeclared_json=True)),
        GLM_MARKERS,
        "GLM-4.5, 4.6 and their V variants",
        aliases=("glm",),
        wire=GLM_WIRE,
        streaming=STRINGS_GROW,
        quirks="newlines between tags are optional; an undeclared parameter is JSON if it reads as JSON",
        detect=(("<arg_key>", "<arg_value>"),),
    ),
    ToolFormat(
        "glm47",
        glm(ValueStyle(undeclared_json=True)),
        GLM_MARKERS,
        "GLM-4.7, GLM-5",
        wire=Wire(begin="<tool_call>{name}", end="</tool_call>", style="glm_xml", trigger="<tool_call>"),
        streaming=STRINGS_GROW,
        quirks="as glm45, nothing between the tags",
    ),
    ToolFormat(
        "ling3",
        glm(ValueStyle(undeclared_json=True)),
        GLM_MARKERS,
        "Ling 3, Ring 3",
        wire=GLM_WIRE,
        streaming=STRINGS_GROW,
        quirks="as glm45; the newline after the name is optional",
    ),
    ToolFormat(
        "poolside_v1",
        glm(ValueStyle(trim="newline"), text_after=False),
        GLM_MARKERS,
        "poolside Laguna",
        wire=GLM_WIRE,
        streaming=STRINGS_GROW,
        quirks="one newline at each end of a value is framing; a key without value is dropped; text after a call is dropped",
    ),
    ToolFormat(
        "spark25",
        glm(ValueStyle()),
        GLM_MARKERS,
        "Spark 2.5",
        aliases=("spark3",),
        wire=GLM_WIRE,
        streaming=STRINGS_GROW,
        quirks="no newline between key and value",
    ),
    ToolFormat(
        "hunyuan",
        hunyuan(),
        hunyuan_markers(""),
        "Hunyuan HY-3",
        aliases=("hy_v3",),
        wire=hunyuan_wire(""),
        streaming=STRINGS_GROW,
        quirks="the group's end is optional; vocabularies with suffixed markers: `hunyuan-opensource`",
        detect=(("<tool_sep>",),),
    ),
    ToolFormat(
        "hunyuan-opensource",
        hunyuan(":opensource"),
        hunyuan_markers(":opensource"),
        "Hunyuan HY-3 with suffixed markers",
        wire=hunyuan_wire(":opensource"),
        streaming=STRINGS_GROW,
        quirks="every marker ends in `:opensource>`",
        detect=(("<tool_sep:opensource>",),),
    ),
    ToolFormat(
        "k2_horizon",
        lambda session: read_text(session, K2),
        (
            "<ifm|tool_calls>",
            "</ifm|tool_calls>",
            "<ifm|tool_call>",
            "</ifm|tool_call>",
            "<ifm|arg_key>",
            "</ifm|arg_key>",
            "<ifm|arg_type>",
            "</ifm|arg_type>",
            "<ifm|arg_value>",
            "</ifm|arg_value>",
        ),
        "K2 Horizon",
        wire=Wire(
            open="<ifm|tool_calls>\n",
            begin="<ifm|tool_call>{name}\n",
            end="</ifm|tool_call>\n",
            style="elements",
            element=("<ifm|arg_key>{key}</ifm|arg_key>\n<ifm|arg_value>", "</ifm|arg_value>\n"),
            close="</ifm|tool_calls>",
            trigger="<ifm|tool_calls>",
        ),
        streaming=STRINGS_GROW,
        quirks="two dialects, tags and JSON; the declared type wins over the written one",
        detect=(("<ifm|tool_calls>",),),
    ),
    ToolFormat(
        "solar_open2",
        lambda session: read_text(session, SOLAR),
        SOLAR_MARKERS,
        "Solar Open2, Solar Pro",
        wire=Wire(
            begin="<|tool_call:start|>{name}\n",
            end="<|tool_call:end|>",
            style="elements",
            element=("<|tool_arg:start|>{key}<|tool_arg:value|>", "<|tool_arg:end|>\n"),
            separator="\n",
            trigger="<|tool_call:start|>",
        ),
        streaming=STRINGS_GROW,
        quirks="a repeated key keeps its first value; missing ends are forgiven; text after the first call is dropped",
        detect=(("<|tool_call:start|>",),),
    ),
)
