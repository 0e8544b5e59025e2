"""Which formats a model writes, from its chat template and vocabulary; and whether a chosen one fits it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from function_call.machinery.format import ToolFormat
from function_call.reasoning.format import ReasoningEntry
from function_call.registry import Registry

Found = TypeVar("Found", ToolFormat, ReasoningEntry)

AUTO = "auto"
GENERAL = "hermes"
"""Many templates mention these markers beside others that say more: it is looked for last."""

REASONING_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("gpt-oss", ("<|channel|>", "analysis")),
    ("inkling", ("<|content_thinking|>",)),
    ("kimi_k3", ("<|open|>", "<|sep|>")),
    ("muse", ("<|eom|>", "to=self")),
    ("mistral", ("[THINK]",)),
    ("kimi", ("◁think▷",)),
    ("gemma4", ("<|channel>", "<channel|>")),
    ("cohere_command4", ("<|START_THINKING|>",)),
    ("apertus2509", ("<|inner_prefix|>",)),
    ("solar_open2", ("<|think:start|>",)),
    ("k2_horizon", ("<ifm|think>",)),
    ("seed_oss", ("<seed:think>",)),
    ("minimax-m3", ("<mm:think>",)),
    ("granite", ("Here is my thought process",)),
    ("hunyuan", ("<think>", "<tool_sep>")),
    ("hunyuan", ("<think:opensource>",)),
    ("hunyuan_a13b", ("<think>", "<answer>")),
    ("ernie45", ("<think>", "<response>")),
    ("minimax", ("<think>", "<minimax:tool_call>")),
    ("kimi_k2", ("<think>", "<|tool_calls_section_begin|>")),
    ("deepseek-v4", ("<think>", "｜DSML｜tool_calls")),
    ("deepseek-v3", ("</think>", "<｜Assistant｜>", "thinking")),
    ("deepseek-r1", ("<think>", "<｜Assistant｜>")),
    ("interns1", ("<think>", "<|plugin|>")),
    ("olmo3", ("<think>", "<function_calls>")),
    ("qwen3", ("<think>", "<tool_call>")),
    ("qwen3", ("</think>",)),
)


@dataclass(frozen=True)
class Detection(Generic[Found]):
    """What was chosen (None: nothing fits) and why, in a sentence for the log and `GET /v1/contract`."""

    chosen: Found | None
    reason: str


def choose_tool_format(
    registry: Registry, name: str | None, template: str | None, vocabulary: Collection[str]
) -> Detection[ToolFormat]:
    """What `--tool-call-parser` means for this model: a name, `auto`, or nothing. UnknownParser for any other word."""
    if name is None:
        return Detection(None, "no --tool-call-parser")
    if name == AUTO:
        return detect_tool_format(registry, template, vocabulary)
    return Detection(fitted(registry, registry.tool_format(name), vocabulary), f"--tool-call-parser {name}")


def choose_reasoning(
    registry: Registry, name: str | None, template: str | None, vocabulary: Collection[str]
) -> Detection[ReasoningEntry]:
    """Likewise for `--reasoning-parser`."""
    if name is None:
        return Detection(None, "no --reasoning-parser")
    if name == AUTO:
        return detect_reasoning(registry, template, vocabulary)
    return Detection(registry.reasoning_format(name), f"--reasoning-parser {name}")


def detect_tool_format(registry: Registry, template: str | None, vocabulary: Collection[str]) -> Detection[ToolFormat]:
    """The format whose markers the template writes; lacking those, the one whose markers the vocabulary holds."""
    text = _plain(template)
    candidates = sorted(registry.tool_formats, key=lambda entry: entry.name == GENERAL)
    for source, where in ((text, "chat template"), (vocabulary, "vocabulary")):
        for entry in candidates:
            for signs in entry.detect:
                if all(sign in source for sign in signs):
                    return Detection(fitted(registry, entry, vocabulary), _because(entry.name, where, signs))
    return Detection(None, "neither the chat template nor the vocabulary holds the markers of a known tool-call format")


def detect_reasoning(
    registry: Registry, template: str | None, vocabulary: Collection[str]
) -> Detection[ReasoningEntry]:
    text = _plain(template)
    for source, where in ((text, "chat template"), (vocabulary, "vocabulary")):
        for name, signs in REASONING_SIGNS:
            if all(sign in source for sign in signs):
                return Detection(registry.reasoning_format(name), _because(name, where, signs))
    return Detection(None, "neither the chat template nor the vocabulary holds the markers of a known reasoning format")


def fitted(registry: Registry, entry: ToolFormat, vocabulary: Collection[str] | None) -> ToolFormat:
    """The format as this vocabulary (None: unknown) has it: suffixed markers, or the constrained shape of older tokenizers."""
    if vocabulary is None:
        return entry
    suffixed = f"{entry.name}-opensource"
    if suffixed in registry.tool_names:
        other = registry.tool_format(suffixed)
        if all(marker in vocabulary for marker in other.markers[:1]):
            return other
    if entry.wire_without is not None and entry.wire_without[0] not in vocabulary:
        return replace(entry, wire=entry.wire_without[1])
    return entry


def warnings(
    tool_format: ToolFormat | None, reasoning: ReasoningEntry | None, template: str | None, vocabulary: Collection[str]
) -> list[str]:
    """One line for each chosen format of which neither template nor vocabulary knows a marker: calls would reach clients as text."""
    text = _plain(template)
    found: list[str] = []
    if tool_format is not None and not _known(tool_format.markers, text, vocabulary):
        found.append(
            f"--tool-call-parser {tool_format.name}: neither the tokenizer nor the chat template knows any of its markers "
            f"({_list(tool_format.markers)}); with the wrong parser tool calls come back as plain text"
        )
    markers = () if reasoning is None else reasoning.markers or tuple(filter(None, (reasoning.open, reasoning.close)))
    if reasoning is not None and not _known(markers, text, vocabulary):
        found.append(
            f"--reasoning-parser {reasoning.name}: neither the tokenizer nor the chat template knows any of its markers "
            f"({_list(markers)}); with the wrong parser reasoning comes back as content, or content as reasoning"
        )
    return found


def _plain(template: str | None) -> str:
    """The template's text with the escapes of its string literals undone, as far as markers are concerned."""
    return (template or "").replace('\\"', '"').replace("\\'", "'")


def _known(markers: Iterable[str], text: str, vocabulary: Collection[str]) -> bool:
    """True also for formats without markers: there is nothing to know."""
    wanted = tuple(markers)
    return not wanted or any(marker in text or marker in vocabulary for marker in wanted)


def _because(name: str, where: str, signs: tuple[str, ...]) -> str:
    return f"{name}: the {where} holds {_list(signs)}"


def _list(markers: Iterable[str]) -> str:
    return ", ".join(repr(marker) for marker in markers)
