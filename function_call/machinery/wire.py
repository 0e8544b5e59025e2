"""How a constrained call is written: the literal text around the arguments, for xgrammar's structural tags."""

from dataclasses import dataclass
from typing import Literal

ArgumentStyle = Literal[
    "json", "qwen_xml", "minimax_xml", "minimax_m3_xml", "deepseek_xml", "glm_xml", "kimi_k3_xml", "gemma", "python"
]


@dataclass(frozen=True)
class Wire:
    """`open`, then calls joined by `separator`, then `close`. `{name}` in `begin` stands for the tool's name.

    `trigger` is where free text turns into a call under tool_choice auto; "" if no text announces one.
    `single` formats write one call per answer.
    """

    begin: str
    end: str
    style: ArgumentStyle = "json"
    open: str = ""
    close: str = ""
    separator: str = ""
    trigger: str = ""
    single: bool = False
