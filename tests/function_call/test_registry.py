"""Names, plugins, detection, visible markers, and the tables in the documentation."""

from pathlib import Path

import pytest

from function_call.detection import (
    choose_reasoning,
    choose_tool_format,
    detect_reasoning,
    detect_tool_format,
    fitted,
    warnings,
)
from function_call.documentation import reasoning_table, tool_table, with_table
from function_call.events import collect
from function_call.registry import PluginError, Registry, UnknownParser, visible_special_tokens
from function_call.stream import OutputParser

SGLANG = [
    "apertus2509",
    "cohere_command4",
    "deepseekv3",
    "deepseekv31",
    "deepseekv32",
    "deepseekv4",
    "dots",
    "glm",
    "glm45",
    "glm47",
    "gpt-oss",
    "k2_horizon",
    "kimi_k2",
    "kimi_k3",
    "lfm2",
    "ling3",
    "llama3",
    "mimo",
    "minicpm5",
    "mistral",
    "muse",
    "poolside_v1",
    "pythonic",
    "qwen",
    "qwen25",
    "qwen3_coder",
    "spark25",
    "step3",
    "step3p5",
    "minimax-m2",
    "minimax-m3",
    "trinity",
    "interns1",
    "hermes",
    "hunyuan",
    "gigachat3",
    "gigachat35",
    "gemma4",
    "inkling",
]
VLLM = [
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "deepseek_v4",
    "cohere_command3",
    "cohere_command4",
    "ernie45",
    "glm45",
    "glm47",
    "granite-20b-fc",
    "granite",
    "granite4",
    "hermes",
    "poolside_v1",
    "hunyuan_a13b",
    "hy_v3",
    "internlm",
    "jamba",
    "lfm2",
    "kimi_k2",
    "kimi_k3",
    "llama3_json",
    "llama4_json",
    "llama4_pythonic",
    "longcat",
    "mimo",
    "minimax_m2",
    "minimax_m3",
    "minicpm5",
    "mistral",
    "olmo3",
    "openai",
    "phi4_mini_json",
    "pythonic",
    "qwen3_coder",
    "qwen3_xml",
    "seed_oss",
    "step3",
    "step3p5",
    "inkling",
    "xlam",
    "gigachat3",
    "functiongemma",
    "gemma4",
    "apertus",
    "solar_open2",
    "minimax",
]
REASONING = [
    "deepseek-r1",
    "deepseek_r1",
    "deepseek-v3",
    "deepseek_v3",
    "deepseek-v4",
    "deepseek_v4",
    "glm45",
    "glm47",
    "hunyuan",
    "hy_v3",
    "gpt-oss",
    "openai_gptoss",
    "kimi",
    "kimi_k2",
    "kimi_k3",
    "mimo",
    "poolside_v1",
    "qwen3",
    "qwen3-thinking",
    "minimax",
    "minimax_m2",
    "minimax-append-think",
    "minimax_m2_append_think",
    "minimax-m3",
    "minimax_m3",
    "step3",
    "step3p5",
    "mistral",
    "nemotron_3",
    "nemotron_v3",
    "interns1",
    "intern_s1",
    "telechat4",
    "gemma4",
    "inkling",
    "cohere_command4",
    "cohere_command3",
    "apertus2509",
    "apertus",
    "granite",
    "hunyuan_a13b",
    "ernie45",
    "seed_oss",
    "olmo3",
    "holo2",
    "solar_open2",
    "k2_horizon",
    "muse",
    "muse_glimmer",
    "identity",
]
QWEN_TEMPLATE = '{{ "\\n<tool_call>\\n{\\"name\\": \\"" }}{{ tool.name }}{{ "\\", \\"arguments\\": " }}{% if enable_thinking %}<think>'


def test_the_names_of_both_engines_are_known(registry: Registry) -> None:
    for name in {*SGLANG, *VLLM}:
        entry = registry.tool_format(name)
        assert name in (entry.name, *entry.aliases)
    for name in REASONING:
        reasoning = registry.reasoning_format(name)
        assert name in (reasoning.name, *reasoning.aliases)
    assert registry.tool_format("openai") is registry.tool_format("gpt-oss")


def test_no_name_is_taken_twice(registry: Registry) -> None:
    for formats in (registry.tool_formats, registry.reasoning_formats):
        names = [name for entry in formats for name in (entry.name, *entry.aliases)]
        assert len(names) == len(set(names))


def test_an_unknown_name_lists_the_known_ones(registry: Registry) -> None:
    with pytest.raises(UnknownParser, match="hermes"):
        registry.tool_format("hermez")
    with pytest.raises(UnknownParser, match="qwen3"):
        registry.reasoning_format("hermes")


def test_detection_says_what_it_chose_and_why(registry: Registry) -> None:
    found = detect_tool_format(registry, QWEN_TEMPLATE, [])
    assert found.chosen is registry.tool_format("hermes") and "<tool_call>" in found.reason
    reasoning = detect_reasoning(registry, QWEN_TEMPLATE, [])
    assert reasoning.chosen is registry.reasoning_format("qwen3") and "template" in reasoning.reason
    coder = "<tool_call>\n<function=' ~ name ~ '>\n<parameter=" + QWEN_TEMPLATE
    assert detect_tool_format(registry, coder, []).chosen is registry.tool_format("qwen3_coder")
    by_token = detect_tool_format(registry, "{{ messages }}", {"<|tool_calls_section_begin|>": 1})
    assert by_token.chosen is registry.tool_format("kimi_k2") and "vocabulary" in by_token.reason
    nothing = detect_tool_format(registry, None, [])
    assert nothing.chosen is None and "neither" in nothing.reason


def test_choosing_covers_names_auto_and_nothing(registry: Registry) -> None:
    assert choose_tool_format(registry, None, QWEN_TEMPLATE, []).chosen is None
    assert choose_tool_format(registry, "auto", QWEN_TEMPLATE, []).chosen is registry.tool_format("hermes")
    assert choose_tool_format(registry, "qwen", None, []).chosen is registry.tool_format("qwen25")
    assert choose_reasoning(registry, "auto", QWEN_TEMPLATE, []).chosen is registry.reasoning_format("qwen3")
    assert choose_reasoning(registry, "qwen3", None, []).chosen is registry.reasoning_format("qwen3")
    assert choose_reasoning(registry, None, None, []).chosen is None
    with pytest.raises(UnknownParser):
        choose_tool_format(registry, "Auto", None, [])


def test_every_sign_leads_to_a_format_that_reads_like_it(registry: Registry) -> None:
    for entry in registry.tool_formats:
        for signs in entry.detect:
            chosen = detect_tool_format(registry, " ".join(signs), []).chosen
            assert chosen is not None
            assert chosen is entry or set(chosen.markers) & set(entry.markers), entry.name


def test_suffixed_vocabularies_get_their_dialect(registry: Registry) -> None:
    suffixed = registry.tool_format("hunyuan-opensource")
    assert fitted(registry, registry.tool_format("hunyuan"), ["<tool_calls:opensource>"]) is suffixed
    plain = registry.tool_format("hunyuan")
    assert fitted(registry, plain, ["<tool_calls>"]) is plain
    text = "<tool_calls:opensource><tool_call:opensource>ping<tool_sep:opensource></tool_call:opensource>"
    parser = OutputParser(None, suffixed, [])
    assert [call.name for call in collect([*parser.feed(text), *parser.finish("stop")]).calls] == ["ping"]


def test_a_parser_that_does_not_fit_is_announced(registry: Registry) -> None:
    hermes, qwen = registry.tool_format("hermes"), registry.reasoning_format("qwen3")
    assert warnings(hermes, qwen, QWEN_TEMPLATE, []) == []
    assert warnings(hermes, qwen, "{{ content }}", {"<tool_call>", "</think>"}) == []
    told = warnings(hermes, qwen, "{{ content }}", [])
    assert len(told) == 2 and "<tool_call>" in told[0] and "<think>" in told[1]
    assert warnings(None, registry.reasoning_format("identity"), None, []) == []


def test_markers_stay_visible_to_the_parser(registry: Registry) -> None:
    visible = visible_special_tokens(registry.tool_format("gemma4"), registry.reasoning_format("gemma4"))
    assert {"<|tool_call>", '<|"|>', "<|channel>"} <= set(visible)
    assert visible_special_tokens(registry.tool_format("hermes"), None, {"<tool_call>", "<s>"}) == ("<tool_call>",)
    for name in ("kimi_k2", "solar_open2", "apertus2509", "lfm2", "mistral", "gpt-oss"):
        text = registry.tool_format(name).wire
        assert (
            text is None
            or not text.open.startswith("<|")
            or any(text.open.startswith(marker) for marker in registry.tool_format(name).markers)
        )


PLUGIN = """
from function_call.machinery.format import ToolFormat
from function_call.machinery.json_blocks import json_blocks

TOOL_FORMATS = (ToolFormat("mine", json_blocks(("<call>",), ("</call>",)), ("<call>",), "my model"),)
"""


def test_a_plugin_adds_formats(registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    extended = registry.with_plugin(path)
    parser = OutputParser(None, extended.tool_format("mine"), [])
    events = [*parser.feed('<call>{"name": "f"}</call>'), *parser.finish("stop")]
    assert [call.name for call in collect(events).calls] == ["f"]
    assert extended.tool_format("hermes") is registry.tool_format("hermes")
    with pytest.raises(UnknownParser):
        registry.tool_format("mine")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1", "neither"),
        ("TOOL_FORMATS = (1,)", "no ToolFormat"),
        ("1 / 0", "ZeroDivisionError"),
        (PLUGIN.replace('("</call>",)', '("call>",)'), "stands inside"),
    ],
)
def test_a_plugin_that_can_not_be_used_says_why(text: str, why: str, registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(PluginError, match=why):
        registry.with_plugin(path)
    with pytest.raises(PluginError):
        registry.with_plugin(tmp_path / "absent.py")


def test_the_documentation_is_current(registry: Registry) -> None:
    docs = Path(__file__).parents[2] / "docs"
    for name, table in (("tool-calling.md", tool_table(registry)), ("reasoning.md", reasoning_table(registry))):
        text = (docs / name).read_text(encoding="utf-8")
        assert with_table(text, table) == text, f"run python -m function_call.documentation to renew docs/{name}"
