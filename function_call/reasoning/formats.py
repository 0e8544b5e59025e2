"""Every reasoning format."""

from typing import Any

from function_call.machinery.reader import Step
from function_call.reasoning import frames
from function_call.reasoning.format import ReasoningEntry
from function_call.reasoning.splitter import Split
from function_call.reasoning.tags import Tags

COHERE_FRAMES = ("<|START_TEXT|>", "<|END_TEXT|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>")


def identity(split: Split) -> Step[None]:
    """Everything is content."""
    return
    yield


def append_think(split: Split) -> Step[None]:
    """Nothing is split off; the tag that the prompt holds is put before the text."""
    if (yield from split.reader.peek()):
        split.rest("<think>")


def tagged(
    name: str, opening: str, closing: str, models: str, tags: dict[str, Any] | None = None, **more: Any
) -> ReasoningEntry:
    """An entry with one pair of markers. `tags`: further fields of `Tags`."""
    split = Tags(((opening, closing),), **(tags or {}))
    more.setdefault("markers", (opening.rstrip(), closing, *split.stripped))
    return ReasoningEntry(name, split.split, opening, closing, models=models, blocks=split, **more)


def think(name: str, models: str, tool: str = "", **more: Any) -> ReasoningEntry:
    """`<think>` ... `</think>`; `tool` is the marker that ends unclosed reasoning."""
    tags = {"tool_opens": (tool,)} if tool else None
    return tagged(name, "<think>", "</think>", models, tags, **more)


HUNYUAN = Tags(
    (("<think>", "</think>"), ("<think:opensource>", "</think:opensource>")),
    tool_opens=("<tool_calls>", "<tool_calls:opensource>"),
)
K2 = Tags(
    tuple((f"<ifm|{name}>", f"</ifm|{name}>") for name in ("think", "think_fast", "think_faster")),
    tool_opens=("<ifm|tool_calls>",),
)
GRANITE = Tags(
    tuple(
        (f"Here{verb} my thought process:", f"Here{end} my response:")
        for verb in (" is", "'s")
        for end in (" is", "'s")
    )
)
COHERE = Tags(
    (("<|START_THINKING|>", "<|END_THINKING|>"),),
    tool_opens=("<|START_ACTION|>", "<|START_TEXT|>", "<|START_RESPONSE|>"),
    stripped=COHERE_FRAMES,
)
K3_THINK = ("<|open|>think<|sep|>", "<|close|>think<|sep|>")

REASONING_FORMATS = (
    think("deepseek-r1", "DeepSeek R1 and its distillations", aliases=("deepseek_r1",), always=True),
    think("deepseek-v3", "DeepSeek V3.1 to V3.2", aliases=("deepseek_v3",), toggle="thinking", on_by_default=False),
    think("deepseek-v4", "DeepSeek V4", aliases=("deepseek_v4",), toggle="thinking", on_by_default=False),
    think("glm45", "GLM-4.5 to GLM-5", "<tool_call>", aliases=("glm47",), toggle="enable_thinking"),
    ReasoningEntry(
        "hunyuan",
        HUNYUAN.split,
        "<think>",
        "</think>",
        aliases=("hy_v3",),
        models="Hunyuan HY-3",
        toggle="reasoning_effort",
        on_by_default=False,
        markers=(*HUNYUAN.opens.all, *HUNYUAN.closes),
        quirks="markers may carry the suffix `:opensource`",
        blocks=HUNYUAN,
    ),
    ReasoningEntry(
        "gpt-oss",
        frames.harmony,
        "<|channel|>analysis<|message|>",
        "<|end|>",
        aliases=("openai_gptoss",),
        models="gpt-oss",
        toggle="reasoning_effort",
        markers=("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
        quirks="several analysis messages are joined",
    ),
    tagged("kimi", "◁think▷", "◁/think▷", "Kimi-VL-Thinking"),
    think("kimi_k2", "Kimi K2-Thinking, K2.5", "<|tool_calls_section_begin|>", toggle="thinking"),
    ReasoningEntry(
        "kimi_k3",
        frames.kimi_k3,
        *K3_THINK,
        models="Kimi K3",
        toggle="thinking",
        markers=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
        quirks="channels; the tools channel ends reasoning",
    ),
    think("mimo", "MiMo-V2", "<tool_call>", toggle="enable_thinking", on_by_default=False),
    think("poolside_v1", "poolside Laguna", "<tool_call>", toggle="enable_thinking", on_by_default=False),
    think("qwen3", "Qwen3, Qwen3.5, Qwen3.6, QwQ", "<tool_call>", toggle="enable_thinking"),
    think("qwen3-thinking", "Qwen3 Thinking-2507, Qwen3-Next-Thinking", "<tool_call>", always=True),
    think("minimax", "MiniMax-M2 to M2.7", aliases=("minimax_m2",), always=True),
    ReasoningEntry(
        "minimax-append-think",
        append_think,
        aliases=("minimax_m2_append_think",),
        models="MiniMax-M2 with thoughts kept in the content",
        quirks="nothing is split off; `<think>` is put before the text",
    ),
    tagged(
        "minimax-m3",
        "<mm:think>",
        "</mm:think>",
        "MiniMax-M3",
        {"stray_only_leads": True},
        aliases=("minimax_m3",),
        toggle="thinking_mode",
        on_by_default=False,
        quirks="one stray closing marker at the start is dropped",
    ),
    think("step3", "Step3", always=True),
    think("step3p5", "Step-3.5-Flash, Step-3.7-Flash"),
    tagged(
        "mistral",
        "[THINK]",
        "[/THINK]",
        "Magistral, Mistral Small 4, Ministral 3",
        {"stray_close": True},
        toggle="reasoning_effort",
        on_by_default=False,
        quirks="a closing marker without an opening one is removed",
    ),
    think(
        "nemotron_3", "Nemotron 3, Nemotron-Nano v2", "<tool_call>", aliases=("nemotron_v3",), toggle="enable_thinking"
    ),
    think("interns1", "Intern-S1", aliases=("intern_s1",), toggle="enable_thinking"),
    think("telechat4", "TeleChat4", toggle="enable_thinking"),
    tagged(
        "gemma4",
        "<|channel>thought\n",
        "<channel|>",
        "Gemma 4",
        toggle="enable_thinking",
        on_by_default=False,
        markers=("<|channel>", "<channel|>"),
        quirks="the label `thought` is part of the opening marker",
    ),
    ReasoningEntry(
        "inkling",
        frames.inkling,
        "<|message_model|><|content_thinking|>",
        "<|end_message|>",
        models="Inkling",
        markers=(
            "<|message_model|>",
            "<|content_thinking|>",
            "<|content_text|>",
            "<|content_invoke_tool_json|>",
            "<|end_message|>",
            "<|content_model_end_sampling|>",
        ),
        quirks="several thinking blocks are joined",
    ),
    ReasoningEntry(
        "cohere_command4",
        COHERE.split,
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        aliases=("cohere_command3",),
        models="Command R7B, Command A, Command A+",
        toggle="reasoning",
        markers=("<|START_THINKING|>", "<|END_THINKING|>", *COHERE_FRAMES, "<|START_ACTION|>", "<|END_ACTION|>"),
        quirks="text and response frames are removed",
        blocks=COHERE,
    ),
    tagged(
        "apertus2509",
        "<|inner_prefix|>",
        "<|inner_suffix|>",
        "Apertus 2509",
        {"lifts": ("<|tools_prefix|>", "<|tools_suffix|>"), "repeats": True},
        aliases=("apertus",),
        toggle="enable_thinking",
        on_by_default=False,
        markers=("<|inner_prefix|>", "<|inner_suffix|>", "<|tools_prefix|>", "<|tools_suffix|>"),
        quirks="several blocks; a tools block inside one is lifted out of it",
    ),
    ReasoningEntry(
        "granite",
        GRANITE.split,
        "Here is my thought process:",
        "Here is my response:",
        models="Granite 3.2, 3.3",
        toggle="thinking",
        on_by_default=False,
        quirks="the markers are phrases",
        blocks=GRANITE,
    ),
    tagged(
        "hunyuan_a13b",
        "<think>",
        "</think>",
        "Hunyuan-A13B",
        {"stripped": ("<answer>", "</answer>")},
        toggle="enable_thinking",
        quirks="answer tags are removed",
    ),
    tagged(
        "ernie45",
        "<think>",
        "</think>",
        "ERNIE 4.5 Thinking",
        {"stripped": ("<response>", "</response>")},
        always=True,
        quirks="response tags are removed",
    ),
    tagged("seed_oss", "<seed:think>", "</seed:think>", "Seed-OSS", toggle="thinking_budget"),
    think("olmo3", "OLMo 3 Think"),
    think("holo2", "Holo2", toggle="thinking"),
    tagged(
        "solar_open2",
        "<|think:start|>",
        "<|think:end|>",
        "Solar Open2",
        {"tool_opens": ("<|tool_call:start|>",)},
        toggle="reasoning_effort",
    ),
    ReasoningEntry(
        "k2_horizon",
        K2.split,
        "<ifm|think>",
        "</ifm|think>",
        models="K2 Horizon",
        toggle="reasoning_effort",
        markers=(*K2.opens.all, *K2.closes, "<ifm|tool_calls>"),
        quirks="three pairs of markers, by effort",
        blocks=K2,
    ),
    ReasoningEntry(
        "muse",
        frames.muse,
        aliases=("muse_glimmer",),
        models="Muse Glimmer",
        markers=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
        quirks="messages to `self`",
    ),
    ReasoningEntry("identity", identity, models="models without reasoning"),
)
