"""How a constrained call is written: the literal text around the arguments, for xgrammar's structural tags."""

from dataclasses import dataclass
from typing import Literal

ArgumentStyle = Literal[
    "json",
    "qwen_xml",
    "minimax_xml",
    "minimax_m3_xml",
    "deepseek_xml",
    "glm_xml",
    "kimi_k3_xml",
    "gemma",
    "elements",
    "python",
]
"""The first eight are notations of xgrammar's JSON-schema format; the last two are put together here."""


@dataclass(frozen=True)
class Wire:
    """`leads` (each may be missing), `open`, calls joined by `separator`, then `close`.

    In `begin`, `{name}` stands for the tool's name and `{digits}` for a number of the model's choice. `trigger` is the text
    at which free text turns into calls under tool_choice auto (`{name}`: one for each tool); "" if nothing announces one. `single`: one call per answer.
    """

    begin: str
    end: str
    style: ArgumentStyle = "json"
    open: str = ""
    close: str = ""
    separator: str = ""
    trigger: str = ""
    leads: tuple[str, ...] = ()
    single: bool = False
    element: tuple[str, str] = ("", "")
    """For `elements`: what stands before and after a value; `{key}`, and `{is_string}` as true or false."""
