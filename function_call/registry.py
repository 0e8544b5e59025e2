"""Parser names to formats, those of SGLang and of vLLM alike, and one's own from a plugin file."""

import importlib.util
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from function_call.formats.all_formats import TOOL_FORMATS
from function_call.machinery.format import ToolFormat
from function_call.reasoning.format import ReasoningEntry
from function_call.reasoning.formats import REASONING_FORMATS
from function_call.stream import OutputParser


class Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...


Format = TypeVar("Format", bound=Named)


class UnknownParser(ValueError):
    """No format goes by that name; the message lists those that there are."""


class PluginError(ValueError):
    """The plugin file can't be used; the message says why."""


class Registry:
    """Every name, aliases included, of both kinds of format. `tool_names` and `reasoning_names` list the first names."""

    def __init__(
        self,
        tool_formats: Iterable[ToolFormat] = TOOL_FORMATS,
        reasoning_formats: Iterable[ReasoningEntry] = REASONING_FORMATS,
    ) -> None:
        self.tool_formats = tuple(tool_formats)
        self.reasoning_formats = tuple(reasoning_formats)
        self._tools = _by_name(self.tool_formats)
        self._reasoning = _by_name(self.reasoning_formats)

    @property
    def tool_names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    @property
    def reasoning_names(self) -> tuple[str, ...]:
        return tuple(self._reasoning)

    def tool_format(self, name: str) -> ToolFormat:
        """UnknownParser if there is none."""
        if name not in self._tools:
            raise UnknownParser(f"no tool-call parser {name!r}; there are: {', '.join(sorted(self._tools))}")
        return self._tools[name]

    def reasoning_format(self, name: str) -> ReasoningEntry:
        """UnknownParser if there is none."""
        if name not in self._reasoning:
            raise UnknownParser(f"no reasoning parser {name!r}; there are: {', '.join(sorted(self._reasoning))}")
        return self._reasoning[name]

    def with_plugin(self, path: str | Path) -> "Registry":
        """A registry that also knows what the file declares: `TOOL_FORMATS` and / or `REASONING_FORMATS`, iterables of
        `ToolFormat` and `ReasoningEntry`. A plugin's names win over the built-in ones. PluginError if it declares neither."""
        module = _load(Path(path))
        tools = tuple(module.get("TOOL_FORMATS", ()))
        reasoning = tuple(module.get("REASONING_FORMATS", ()))
        if not tools and not reasoning:
            raise PluginError(f"{path} declares neither TOOL_FORMATS nor REASONING_FORMATS")
        for declared, kind in ((tools, ToolFormat), (reasoning, ReasoningEntry)):
            for entry in declared:
                if not isinstance(entry, kind):
                    raise PluginError(f"{path}: {entry!r} is no {kind.__name__}")
        for entry in (*tools, *reasoning):
            _try(path, entry)
        return Registry((*self.tool_formats, *tools), (*self.reasoning_formats, *reasoning))


def visible_special_tokens(
    tool_format: ToolFormat | None, reasoning: ReasoningEntry | None, special_tokens: Collection[str] | None = None
) -> tuple[str, ...]:
    """The markers that the detokenizer must not drop: for `DetokenizeOptions.visible_special_tokens`.

    `special_tokens`, where known, are the tokenizer's own: only those among the markers are named then.
    """
    markers = (*(tool_format.markers if tool_format else ()), *(reasoning.markers if reasoning else ()))
    return tuple(m for m in dict.fromkeys(markers) if special_tokens is None or m in special_tokens)


def _by_name(formats: Iterable[Format]) -> dict[str, Format]:
    names: dict[str, Format] = {}
    for entry in formats:
        names.update(dict.fromkeys((entry.name, *entry.aliases), entry))
    return names


def _try(path: str | Path, entry: ToolFormat | ReasoningEntry) -> None:
    """Reads a line of plain text with it: a declaration that can't work is found now, not by the first request."""
    try:
        is_tool = isinstance(entry, ToolFormat)
        parser = OutputParser(None if is_tool else entry, entry if is_tool else None)  # type: ignore[arg-type]
        parser.feed("plain text\n")
        parser.finish("stop")
    except Exception as error:
        raise PluginError(f"{path}: {entry.name} can't read plain text: {error!r}") from error


def _load(path: Path) -> Mapping[str, Any]:
    spec = importlib.util.spec_from_file_location(f"candor_parser_plugin_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise PluginError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PluginError(f"{path} can't be run: {error!r}") from error
    return vars(module)
