"""Which chat template is in force: the flag's, then a registry match on the model's name, then the checkpoint's."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runtime.engine_config import ModelDescription
from runtime.start_error import StartError
from tokenizer_manager.conversation_registry import TEMPLATES, by_name, first_match
from tokenizer_manager.conversation_templates import ConversationTemplate, Style
from tokenizer_manager.template_environment import TemplateFailure, compile_template, make_environment
from tokenizer_manager.template_inspection import TemplateTraits, inspect_template
from tokenizer_manager.tool_prompt import tool_declaration

TemplateSource = Literal["flag", "registry", "checkpoint", "request", "none"]


class TemplateChoiceError(StartError):
    """--chat-template names nothing that exists; the message is for the user who starts the server."""


@dataclass(frozen=True)
class JinjaTemplate:
    """A Jinja chat template. `compiled` is None where the template came with a request: only a child may run it."""

    name: str
    text: str
    traits: TemplateTraits
    compiled: jinja2.Template | None


@dataclass(frozen=True)
class TemplatesInForce:
    """`default` renders conversations (None: the model has no template); `with_tools` those that come with tools.

    `shadowed` says that the checkpoint has a template of its own which a registry match has put aside.
    """

    default: JinjaTemplate | ConversationTemplate | None
    with_tools: JinjaTemplate | None
    named: dict[str, JinjaTemplate]
    source: TemplateSource
    description: str
    shadowed: bool = False

    @property
    def name(self) -> str | None:
        return self.default.name if self.default is not None else None

    @property
    def reads(self) -> list[str]:
        """The names that `chat_template_kwargs` may set."""
        found: frozenset[str] = frozenset()
        for template in (self.default, self.with_tools):
            if isinstance(template, JinjaTemplate):
                found |= template.traits.reads
        return sorted(found)


def choose_templates(
    flag: str, model: ModelDescription, environment: ImmutableSandboxedEnvironment
) -> TemplatesInForce:
    """The templates for this start; TemplateChoiceError if the flag names none."""
    own = _checkpoint_templates(model, environment)
    from_checkpoint = TemplatesInForce(
        default=own.get("default") or next(iter(own.values()), None),
        with_tools=own.get("tool_use"),
        named=own,
        source="checkpoint" if own else "none",
        description="the checkpoint's own template" if own else "the model has no chat template",
    )
    if flag == "checkpoint":
        if not own:
            raise TemplateChoiceError("--chat-template checkpoint: the checkpoint has no chat template")
        return from_checkpoint
    if flag != "auto":
        return _from_flag(flag, own, environment)
    last = Path(model.name.rstrip("/")).name
    matched = first_match(last, stand_in=not own)
    if matched is None:
        return from_checkpoint
    description = f"registry template {matched.name!r}, matched on the model name {last!r}"
    if own:
        description += "; it stands before the checkpoint's own (--chat-template checkpoint for that one)"
    return TemplatesInForce(matched, None, own, "registry", description, shadowed=bool(own))


def chosen_template_text(flag: str, model: ModelDescription) -> str | None:
    """The text that shows how this model is told to write tool calls and reasoning: that of the templates in force, with
    what is added for tools that they don't render; the checkpoint's where a registry template stands before them."""
    chosen = choose_templates(flag, model, make_environment())
    jinja = [template for template in (chosen.default, chosen.with_tools) if isinstance(template, JinjaTemplate)]
    texts = [template.text for template in jinja or chosen.named.values()]
    if jinja and not any(template.traits.renders_tools for template in jinja):
        texts.append(tool_declaration([]))
    return "\n".join(texts) or None


def _checkpoint_templates(
    model: ModelDescription, environment: ImmutableSandboxedEnvironment
) -> dict[str, JinjaTemplate]:
    declared = model.tokenizer_config.get("chat_template") or {}
    texts = {"default": declared} if isinstance(declared, str) else declared
    return {
        name: load_jinja(name if len(texts) > 1 else "checkpoint", text, environment) for name, text in texts.items()
    }


def load_jinja(name: str, text: str, environment: ImmutableSandboxedEnvironment) -> JinjaTemplate:
    """A template that the operator vouches for."""
    try:
        compiled = compile_template(environment, text)
    except TemplateFailure as error:
        raise TemplateChoiceError(f"the chat template {name!r} can't be compiled: {error}") from error
    return JinjaTemplate(name, text, inspect_template(environment, text), compiled)


def load_request_template(text: str, environment: ImmutableSandboxedEnvironment) -> JinjaTemplate:
    """A template that came with a request: parsed here, compiled and run only in a child. TemplateFailure if no Jinja."""
    try:
        return JinjaTemplate("request", text, inspect_template(environment, text), None)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateFailure(f"{error.message} (line {error.lineno})") from error
    except RecursionError as error:
        raise TemplateFailure("the template is nested too deeply") from error


def _from_flag(
    flag: str, own: dict[str, JinjaTemplate], environment: ImmutableSandboxedEnvironment
) -> TemplatesInForce:
    registered = by_name(flag)
    if registered is not None:
        return TemplatesInForce(registered, None, own, "flag", f"registry template {flag!r}, named by --chat-template")
    if flag in own:
        description = f"the checkpoint's template {flag!r}, named by --chat-template"
        return TemplatesInForce(own[flag], None, own, "flag", description)
    path = Path(flag)
    if not path.is_file():
        names = ", ".join(["auto", "checkpoint", *own, *(template.name for template in TEMPLATES)])
        raise TemplateChoiceError(f"--chat-template {flag}: no such file, and no template of that name ({names})")
    text = path.read_text(encoding="utf-8")
    default = _conversation_file(path, text) if path.suffix == ".json" else load_jinja(path.name, text, environment)
    return TemplatesInForce(default, None, own, "flag", f"the file {flag}, named by --chat-template")


def _conversation_file(path: Path, text: str) -> ConversationTemplate:
    """A conversation template from JSON: name, system, system_message, user, assistant, sep_style, stop_str."""
    try:
        fields: dict[str, Any] = json.loads(text)
        style = fields["sep_style"]
        if style not in get_args(Style) or style.startswith("AFFIXES"):
            raise TemplateChoiceError(f"{path}: unknown sep_style {style!r}")
        stop = fields.get("stop_str") or ()
        return ConversationTemplate(
            name=fields["name"],
            style=style,
            roles=(fields["user"], fields["assistant"]),
            separator=fields.get("sep", "\n"),
            separator_two=fields.get("sep2"),
            system_template=fields["system"] + "\n{system_message}",
            system_message=fields.get("system_message", ""),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
        )
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, TemplateChoiceError):
            raise
        raise TemplateChoiceError(f"{path}: not a conversation template ({error!r})") from error
