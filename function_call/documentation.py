"""The tables of docs/tool-calling.md and docs/reasoning.md, made from the registry.

`python -m function_call.documentation` rewrites both between their markers; a test holds them current.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from function_call.machinery.format import ToolFormat
from function_call.reasoning.format import ReasoningEntry
from function_call.registry import Registry

BEGIN, END = "<!-- formats: begin -->", "<!-- formats: end -->"
STYLES = {
    "json": "native, JSON arguments",
    "elements": "native, one element a parameter",
    "python": "native, keyword arguments",
}


def tool_table(registry: Registry) -> str:
    return _table(
        ("Format", "Families", "Markers", "Streaming", "Constraint", "Quirks"),
        (
            (_names(f), f.families, _markers(f.markers), f.streaming, _constraint(f), f.quirks or "none")
            for f in registry.tool_formats
        ),
    )


def reasoning_table(registry: Registry) -> str:
    return _table(
        ("Format", "Models", "Markers", "Toggle", "Quirks"),
        (
            (
                _names(f),
                f.models,
                _markers(tuple(filter(None, (f.open, f.close))) or f.markers),
                _toggle(f),
                f.quirks or "none",
            )
            for f in registry.reasoning_formats
        ),
    )


def with_table(document: str, table: str) -> str:
    """The document with the text between its markers replaced. ValueError if it has none."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"


def _names(entry: ToolFormat | ReasoningEntry) -> str:
    return ", ".join(f"`{name}`" for name in (entry.name, *entry.aliases))


def _markers(markers: Sequence[str]) -> str:
    shown = ["`" + m.replace("\n", "\\n") + "`" for m in markers]
    return " ".join(shown) or "none"


def _constraint(entry: ToolFormat) -> str:
    if entry.wire is None:
        return "generic JSON array"
    style = STYLES.get(entry.wire.style, f"native, {entry.wire.style}")
    return style if entry.wire.trigger else f"{style}; none under auto"


def _toggle(entry: ReasoningEntry) -> str:
    if entry.always:
        return "always on"
    if not entry.toggle:
        return "none"
    return f"`{entry.toggle}`, {'on' if entry.on_by_default else 'off'} by default"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main(folder: Path) -> None:
    registry = Registry()
    for name, table in (("tool-calling.md", tool_table(registry)), ("reasoning.md", reasoning_table(registry))):
        path = folder / name
        path.write_text(with_table(path.read_text(encoding="utf-8"), table), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs"))
