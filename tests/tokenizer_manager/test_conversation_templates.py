"""The classic conversation templates, against the prompts that their users know."""

from typing import Any

import pytest

from protocol.errors import RequestError
from tokenizer_manager.conversation_registry import TEMPLATES, by_name, first_match
from tokenizer_manager.conversation_templates import render_conversation

VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
LLAMA_3 = (
    "<|start_header_id|>user<|end_header_id|>\n\nU1<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA1<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nU2<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)
LLAMA_3_SYSTEM = "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
LLAMA_4 = (
    "<|header_start|>user<|header_end|>\n\nU1<|eot|><|header_start|>assistant<|header_end|>\n\nA1<|eot|>"
    "<|header_start|>user<|header_end|>\n\nU2<|eot|><|header_start|>assistant<|header_end|>\n\n"
)
CHATML = (
    "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
    "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n"
)
HELPFUL = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
ZEPHYR = "<|user|>\nU1</s>\n<|assistant|>\nA1</s>\n<|user|>\nU2</s>\n<|assistant|>\n"
GEMMA = (
    "U1<end_of_turn>\n<start_of_turn>model\nA1<end_of_turn>\n<start_of_turn>user\nU2<end_of_turn>\n"
    "<start_of_turn>model\n"
)

WITH_SYSTEM = {
    "vicuna_v1.1": "S USER: U1 ASSISTANT: A1</s>USER: U2 ASSISTANT:",
    "chatml": "<|im_start|>system\nS<|im_end|>\n" + CHATML,
    "llama-2": "[INST] <<SYS>>\nS\n<</SYS>>\n\nU1 [/INST] A1 </s><s>[INST] U2 [/INST]",
    "mistral": "[SYSTEM_PROMPT]\nS\n[/SYSTEM_PROMPT]\n\nU1 [/INST] A1 </s><s>[INST] U2 [/INST]",
    "llama-4": "<|header_start|>system<|header_end|>\n\nS<|eot|>" + LLAMA_4,
    "llama_3_vision": LLAMA_3_SYSTEM + LLAMA_3,
    "llama-3": LLAMA_3_SYSTEM + LLAMA_3,
    "llama-3-instruct": LLAMA_3_SYSTEM + LLAMA_3,
    "gemma-it": "<start_of_turn>user\nS\n\n" + GEMMA,
    "internlm2-chat": (
        "<|im_start|>system\nS\n<|im_start|>user: U1\n<|im_start|>assistant: A1\n"
        "<|im_start|>user: U2\n<|im_start|>assistant:"
    ),
    "llama-2-chat": "[INST] <<SYS>>\nS\n<</SYS>>\n\nU1 [/INST]A1 </s><s>[INST] U2 [/INST]",
    "mistral-fastchat": "[INST] S\nU1 [/INST] A1</s>[INST] U2 [/INST]",
    "qwen-7b-chat": "<|im_start|>system\nS<|im_end|>\n" + CHATML,
    "qwen": "<|im_start|>system\nS<|im_end|>\n" + CHATML,
    "Yi-34b-chat": "S<|im_end|>\n" + CHATML,
    "yi-1.5": (
        "S<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
        "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n"
    ),
    "zephyr": "<|system|>\nS</s>\n" + ZEPHYR,
    "TinyLlama": "<|system|>\nS</s>\n" + ZEPHYR,
    "catppt": "<|system|>\nS</s>\n" + ZEPHYR,
    "alpaca": "S\n\n### Instruction: U1\n\n### Response: A1</s>### Instruction: U2\n\n### Response:",
    "deepseek-v3": "S<｜User｜>U1<｜Assistant｜>A1<｜end▁of▁sentence｜><｜User｜>U2<｜Assistant｜>",
    "default": "SYSTEM:S\nUSER:U1\nASSISTANT:A1\nUSER:U2\nASSISTANT:",
    "claude": "S\n\nHuman: U1\n\nAssistant:A1\n\nHuman: U2\n\nAssistant:",
}
WITHOUT_SYSTEM = {
    "vicuna_v1.1": VICUNA + " USER: U1 ASSISTANT: A1</s>USER: U2 ASSISTANT:",
    "chatml": HELPFUL + CHATML,
    "llama-2": "[INST] U1 [/INST] A1 </s><s>[INST] U2 [/INST]",
    "mistral": "[INST] U1 [/INST] A1 </s><s>[INST] U2 [/INST]",
    "llama-4": LLAMA_4,
    "llama-3": LLAMA_3,
    "gemma-it": "<start_of_turn>user\nYou are a helpful assistant.\n\n" + GEMMA,
    "internlm2-chat": (
        "<|im_start|>system\n\n<|im_start|>user: U1\n<|im_start|>assistant: A1\n"
        "<|im_start|>user: U2\n<|im_start|>assistant:"
    ),
    "qwen": HELPFUL + CHATML,
    "zephyr": "<|system|>\n</s>\n" + ZEPHYR,
    "deepseek-chat": ("<｜begin▁of▁sentence｜>User: U1\n\nAssistant: A1<｜end▁of▁sentence｜>User: U2\n\nAssistant:"),
    "deepseek-coder": "### Instruction:\nU1\n### Response:\nA1\n### Instruction:\nU2\n### Response:\n",
    "default": "USER:U1\nASSISTANT:A1\nUSER:U2\nASSISTANT:",
}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "U1"},
    {"role": "assistant", "content": "A1"},
    {"role": "user", "content": "U2"},
]
SYSTEM = {"role": "system", "content": "S"}


def render(name: str, messages: list[dict[str, Any]], *, open_turn: bool = True, continue_last: bool = False) -> str:
    template = by_name(name)
    assert template is not None
    return render_conversation(template, messages, open_turn=open_turn, continue_last=continue_last)


@pytest.mark.parametrize("name", WITH_SYSTEM)
def test_with_a_system_message(name: str) -> None:
    assert render(name, [SYSTEM, *CONVERSATION]) == WITH_SYSTEM[name]


@pytest.mark.parametrize("name", WITHOUT_SYSTEM)
def test_without_a_system_message(name: str) -> None:
    assert render(name, CONVERSATION) == WITHOUT_SYSTEM[name]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_a_continued_message_ends_the_prompt_and_a_finished_one_begins_alike(template: Any) -> None:
    half = [*CONVERSATION[:1], {"role": "assistant", "content": "half a"}]
    continued = render_conversation(template, half, open_turn=False, continue_last=True)
    finished = render_conversation(template, half, open_turn=False, continue_last=False)
    assert continued.endswith("half a")
    assert finished.startswith(continued)


def test_names_are_unique() -> None:
    names = [template.name for template in TEMPLATES]
    assert len(names) == len(set(names))


def test_a_system_message_counts_wherever_it_stands() -> None:
    assert render("chatml", [*CONVERSATION, SYSTEM]) == WITH_SYSTEM["chatml"]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": "21 degrees"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
    ],
)
def test_what_a_classic_template_cannot_say_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="can't render") as refusal:
        render("vicuna_v1.1", [*CONVERSATION, message])
    assert refusal.value.info.param == "messages[3]"


@pytest.mark.parametrize(
    ("model", "stand_in", "expected"),
    [
        ("vicuna-7b-v1.5", False, "vicuna_v1.1"),
        ("Vicuna-13B", True, "vicuna_v1.1"),
        ("Llama-2-7b-chat-hf", False, None),
        ("Llama-2-7b-chat-hf", True, "llama-2"),
        ("Mistral-7B-Instruct-v0.2", True, "mistral"),
        ("Meta-Llama-3-8B-Instruct", True, "llama-3-instruct"),
        ("Qwen1.5-7B-Chat", True, "qwen"),
        ("Qwen2.5-7B-Instruct", False, None),
        ("DeepSeek-V3", True, "deepseek-v3"),
        ("DeepSeek-V3-Base", True, None),
        ("gemma-2b-it", True, "gemma-it"),
        ("TinyLlama-1.1B", True, "chatml"),
        ("gpt2", True, None),
    ],
)
def test_which_names_match(model: str, stand_in: bool, expected: str | None) -> None:
    found = first_match(model, stand_in=stand_in)
    assert (found.name if found else None) == expected
