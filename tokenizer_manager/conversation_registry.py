"""The conversation templates that Candor knows, in the order in which model names are matched against them.

`matches` holds only what the field still matches ahead of a checkpoint's own template (vicuna). The older patterns
are in `stands_in_for`: most of those models now ship a Jinja template that knows tools and reasoning, which a classic
form would take from them.
"""

from tokenizer_manager.conversation_templates import Affixes, ConversationTemplate

_CHATML_ROLES = ("<|im_start|>user", "<|im_start|>assistant")
_CHATML_SYSTEM = "<|im_start|>system\n{system_message}"
_HELPFUL = "You are a helpful assistant."
_CHATML_AFFIXES = Affixes(
    system=("<|im_start|>system\n", "<|im_end|>\n"),
    user=("<|im_start|>user\n", "<|im_end|>\n"),
    assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
)

TEMPLATES: tuple[ConversationTemplate, ...] = (
    ConversationTemplate(
        name="vicuna_v1.1",
        style="ADD_COLON_TWO",
        roles=("USER", "ASSISTANT"),
        separator=" ",
        separator_two="</s>",
        system_message=(
            "A chat between a curious user and an artificial intelligence assistant. "
            "The assistant gives helpful, detailed, and polite answers to the user's questions."
        ),
        matches=r"vicuna|llava-v1\.5|llava-next-video-7b",
    ),
    ConversationTemplate(
        name="deepseek-v3",
        style="AFFIXES",
        affixes=Affixes(
            system=("", ""), user=("<｜User｜>", ""), assistant=("<｜Assistant｜>", "<｜end▁of▁sentence｜>")
        ),
        system_message=None,
        stop=("<｜end▁of▁sentence｜>",),
        stands_in_for=r"^(?!.*base).*deepseek-(v3|r1)",
    ),
    ConversationTemplate(
        name="dbrx-instruct",
        style="AFFIXES",
        affixes=Affixes(
            system=("<|im_start|>system\n", "<|im_end|>"),
            user=("\n<|im_start|>user\n", "<|im_end|>"),
            assistant=("\n<|im_start|>assistant\n", "<|im_end|>"),
        ),
        system_message=None,
        stop=("<|im_end|>",),
        stands_in_for=r"dbrx.*instruct|instruct.*dbrx",
    ),
    ConversationTemplate(
        name="llama-2",
        style="LLAMA2",
        roles=("[INST]", "[/INST]"),
        separator=" ",
        separator_two=" </s><s>",
        system_template="[INST] <<SYS>>\n{system_message}\n<</SYS>>\n\n",
        stop=("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"),
        stands_in_for=r"llama-2.*chat|codellama.*instruct",
    ),
    ConversationTemplate(
        name="mistral",
        style="LLAMA2",
        roles=("[INST]", "[/INST]"),
        separator=" ",
        separator_two=" </s><s>",
        system_template="[SYSTEM_PROMPT]\n{system_message}\n[/SYSTEM_PROMPT]\n\n",
        stop=("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        stands_in_for=r"pixtral|(mistral|mixtral).*instruct",
    ),
    ConversationTemplate(
        name="llama_3_vision",
        style="LLAMA3",
        roles=("user", "assistant"),
        system_template="<|start_header_id|>system<|end_header_id|>\n\n{system_message}<|eot_id|>",
        system_message=(
            "You are a helpful language and vision assistant. You are able to understand the visual content that the "
            "user provides, and assist the user with a variety of tasks using natural language."
        ),
        stop=("<|end_of_text|>", "<|eot_id|>"),
        stands_in_for=r"llama.*3\.2.*vision",
    ),
    ConversationTemplate(
        name="llama-3-instruct",
        style="AFFIXES",
        affixes=Affixes(
            system=("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"),
            user=("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
            assistant=("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
        ),
        system_message=None,
        stop=("<|eot_id|>",),
        stands_in_for=r"llama-3.*instruct",
    ),
    ConversationTemplate(
        name="chatml",
        style="CHATML",
        roles=_CHATML_ROLES,
        separator="<|im_end|>",
        system_template=_CHATML_SYSTEM,
        system_message=_HELPFUL,
        stop=("<|endoftext|>", "<|im_end|>"),
        stands_in_for=r"tinyllama",
    ),
    ConversationTemplate(
        name="qwen",
        style="AFFIXES",
        affixes=_CHATML_AFFIXES,
        system_message=_HELPFUL,
        stop=("<|im_end|>",),
        stands_in_for=r"^(?!.*llava).*qwen.*(chat|instruct)",
    ),
    ConversationTemplate(
        name="yi-1.5",
        style="AFFIXES",
        affixes=Affixes(
            system=("", ""),
            user=("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
            assistant=("", "<|im_end|>\n"),
        ),
        system_message=None,
        stop=("<|im_end|>",),
        stands_in_for=r"yi-1\.5.*chat",
    ),
    ConversationTemplate(
        name="gemma-it",
        style="GEMMA3",
        roles=("<start_of_turn>user\n", "<start_of_turn>model\n"),
        separator="<end_of_turn>\n",
        system_template="<start_of_turn>user\n{system_message}\n\n",
        system_message=_HELPFUL,
        stop=("<end_of_turn>",),
        stands_in_for=r"gemma.*it",
    ),
    ConversationTemplate(
        name="c4ai-command-r",
        style="AFFIXES",
        affixes=Affixes(
            system=("<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
            user=("<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
            assistant=("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        ),
        system_message=None,
        stop=("<|END_OF_TURN_TOKEN|>",),
        stands_in_for=r"c4ai-command-r",
    ),
    ConversationTemplate(
        name="granite-3-instruct",
        style="AFFIXES",
        affixes=Affixes(
            system=("<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>"),
            user=("<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>"),
            assistant=("<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>"),
        ),
        system_message=None,
        stop=("<|end_of_text|>",),
        stands_in_for=r"granite.*instruct",
    ),
    ConversationTemplate(
        name="interns1",
        style="AFFIXES",
        affixes=_CHATML_AFFIXES,
        system_message=None,
        stop=("<|im_end|>", "<|action_end|>"),
        stands_in_for=r"intern-s1|interns1",
    ),
    ConversationTemplate(
        name="llama-4",
        style="LLAMA4",
        roles=("user", "assistant"),
        system_template="<|header_start|>system<|header_end|>\n\n{system_message}<|eot|>",
        stop=("<|end_of_text|>", "<|eot|>", "<|eom|>"),
    ),
    ConversationTemplate(
        name="internlm2-chat",
        style="ADD_COLON_SINGLE",
        roles=_CHATML_ROLES,
        separator="\n",
        system_template=_CHATML_SYSTEM,
        stop=("<|im_end|>", "<|action_end|>"),
    ),
    ConversationTemplate(
        name="llama-2-chat",
        style="AFFIXES_LLAMA2",
        affixes=Affixes(
            system=("<<SYS>>\n", "\n<</SYS>>\n\n"), user=("[INST] ", " [/INST]"), assistant=("", " </s><s>")
        ),
        system_message=None,
    ),
    ConversationTemplate(
        name="default",
        style="AFFIXES",
        affixes=Affixes(system=("SYSTEM:", "\n"), user=("USER:", "\n"), assistant=("ASSISTANT:", "\n")),
        system_message=None,
    ),
    ConversationTemplate(
        name="claude",
        style="AFFIXES",
        affixes=Affixes(system=("", ""), user=("\n\nHuman: ", ""), assistant=("\n\nAssistant:", "")),
        system_message=None,
    ),
    ConversationTemplate(
        name="llama-3",
        style="LLAMA3",
        roles=("user", "assistant"),
        system_template="<|start_header_id|>system<|end_header_id|>\n\n{system_message}<|eot_id|>",
        stop=("<|eot_id|>",),
    ),
    ConversationTemplate(
        name="mistral-fastchat",
        style="LLAMA2",
        roles=("[INST]", "[/INST]"),
        separator=" ",
        separator_two="</s>",
        system_template="[INST] {system_message}\n",
    ),
    ConversationTemplate(
        name="qwen-7b-chat",
        style="CHATML",
        roles=_CHATML_ROLES,
        separator="<|im_end|>",
        system_template=_CHATML_SYSTEM,
        system_message=_HELPFUL,
        stop=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    ),
    ConversationTemplate(
        name="Yi-34b-chat",
        style="CHATML",
        roles=_CHATML_ROLES,
        separator="<|im_end|>",
        stop=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>"),
    ),
    *(
        ConversationTemplate(
            name=name,
            style="CHATML",
            roles=("<|user|>", "<|assistant|>"),
            separator="</s>",
            system_template="<|system|>\n{system_message}",
            stop=("</s>",),
        )
        for name in ("zephyr", "TinyLlama", "catppt")
    ),
    ConversationTemplate(
        name="deepseek-chat",
        style="DEEPSEEK_CHAT",
        roles=("User", "Assistant"),
        separator="\n\n",
        separator_two="<｜end▁of▁sentence｜>",
        system_message="<｜begin▁of▁sentence｜>",
        stop=("<｜end▁of▁sentence｜>",),
    ),
    ConversationTemplate(
        name="deepseek-coder",
        style="ADD_NEW_LINE_SINGLE",
        roles=("### Instruction:", "### Response:"),
        separator="\n",
        stop=("<|EOT|>",),
    ),
    ConversationTemplate(
        name="alpaca",
        style="ADD_COLON_TWO",
        roles=("### Instruction", "### Response"),
        separator="\n\n",
        separator_two="</s>",
        system_message=(
            "Below is an instruction that describes a task. Write a response that appropriately completes the request."
        ),
    ),
)


def by_name(name: str) -> ConversationTemplate | None:
    """The template that users call so."""
    return next((template for template in TEMPLATES if template.name == name), None)


def first_match(model_name: str, *, stand_in: bool) -> ConversationTemplate | None:
    """The first template whose pattern finds the name. With `stand_in`, patterns for template-less checkpoints count."""
    for template in TEMPLATES:
        if template.matches_name(model_name) or (stand_in and template.stands_in(model_name)):
            return template
    return None
