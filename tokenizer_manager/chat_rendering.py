"""A conversation to prompt text, by whichever template is in force."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from protocol.errors import field_error
from protocol.requests import Adjustment, ChatPrompt
from tokenizer_manager.control_tokens import ControlTokenMarker, Marks, choose_marks
from tokenizer_manager.conversation_registry import by_name
from tokenizer_manager.conversation_templates import ConversationTemplate, render_conversation
from tokenizer_manager.messages import merge_system_messages, normalise_messages
from tokenizer_manager.template_child import render_in_child
from tokenizer_manager.template_choice import JinjaTemplate, TemplatesInForce, load_request_template
from tokenizer_manager.template_environment import TemplateFailure, make_environment, render_template
from tokenizer_manager.template_inspection import TemplateTraits
from tokenizer_manager.tokenization import TextTokenizer
from tokenizer_manager.tool_prompt import (
    declare_in_system,
    declare_in_user,
    spell_out_calls,
    tool_declaration,
)

CLASSIC_TRAITS = TemplateTraits(
    reads=frozenset(),
    literals=frozenset(),
    attributes=frozenset({"tool_calls"}),
    takes_parts=False,
    takes_text=True,
    tests_null=False,
)


@dataclass(frozen=True)
class RenderedChat:
    """`text` still holds `mark` inside what users spelled of control tokens (if `guarded`). `messages` are without."""

    text: str
    mark: str
    template: str
    source: str
    messages: list[dict[str, Any]]
    add_special_tokens: bool
    stop: tuple[str, ...] = ()
    adjustments: tuple[Adjustment, ...] = ()
    guarded: bool = True

    @property
    def plain_text(self) -> str:
        return self.text.replace(self.mark, "")


@dataclass(frozen=True)
class RenderingPolicy:
    """What the operator allows: forging control tokens in content, and templates in requests."""

    allow_special_tokens_in_content: bool = False
    trust_request_chat_template: bool = False


class ChatRenderer:
    """Renders with the templates in force; a template error is a RequestError in the template's words."""

    def __init__(
        self,
        templates: TemplatesInForce,
        tokenizer: TextTokenizer,
        special_tokens: dict[str, str],
        policy: RenderingPolicy,
    ) -> None:
        self.templates = templates
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        self._policy = policy
        self._environment = make_environment()
        self._special = ControlTokenMarker(tokenizer.special)
        self._named: dict[frozenset[str], ControlTokenMarker] = {}
        self._from_requests: dict[str, JinjaTemplate] = {}

    def render(self, prompt: ChatPrompt, now_s: float) -> RenderedChat:
        """The prompt text. `now_s` is what templates take for the present time."""
        template, source = self._choose(prompt)
        adjustments: list[Adjustment] = []
        if source == "registry" and self.templates.shadowed:
            adjustments.append(
                Adjustment(
                    "chat_template",
                    "changed",
                    "the registry's template for this model name stands before the checkpoint's own "
                    "(--chat-template checkpoint for that one)",
                    value=template.name,
                )
            )
        traits = template.traits if isinstance(template, JinjaTemplate) else CLASSIC_TRAITS
        kwargs, unused = _template_kwargs(prompt, traits)
        adjustments += unused
        if prompt.documents and "documents" not in traits.reads:
            adjustments.append(Adjustment("documents", "ignored", f"the template {template.name!r} never reads them"))
        separator = "" if isinstance(template, ConversationTemplate) else "\n"
        messages, changed = normalise_messages(prompt.messages, traits, separator)
        adjustments += changed
        request = _Request(prompt, messages, prompt.tools or None, prompt.documents, kwargs, choose_marks([]))
        request = self._marked(request, traits)
        if isinstance(template, ConversationTemplate):
            text, tail = self._classic(template, request), template.stop
            rendered = RenderedChat(text, request.marks.inside, template.name, source, request.messages, True, tail)
        else:
            text, final, more = self._jinja(template, request, now_s)
            adjustments += more
            add_special = prompt.add_special_tokens
            rendered = RenderedChat(text, request.marks.inside, template.name, source, final, add_special)
        return replace(
            rendered,
            messages=_without(rendered.messages, request.marks),
            adjustments=tuple(adjustments),
            guarded=not self._policy.allow_special_tokens_in_content,
        )

    def _choose(self, prompt: ChatPrompt) -> tuple[JinjaTemplate | ConversationTemplate, str]:
        if prompt.template is not None:
            return self._requested(prompt.template)
        chosen = self.templates.with_tools if prompt.tools and self.templates.with_tools else self.templates.default
        if chosen is None:
            raise field_error(
                "messages",
                "this model has no chat template; use the completions endpoint, or start the server with --chat-template",
                "no_chat_template",
            )
        return chosen, self.templates.source

    def _requested(self, template: str) -> tuple[JinjaTemplate | ConversationTemplate, str]:
        """The request's own template: a name that the server knows, or Jinja source."""
        if not self._policy.trust_request_chat_template:
            raise field_error(
                "chat_template",
                "templates in requests are not accepted (start the server with --trust-request-chat-template)",
                "chat_template_not_trusted",
            )
        known = self.templates.named.get(template) or by_name(template) or self._from_requests.get(template)
        if known is not None:
            return known, "request"
        try:
            loaded = load_request_template(template, self._environment)
            _make_room(self._from_requests)
            self._from_requests[template] = loaded
            return loaded, "request"
        except TemplateFailure as error:
            raise field_error("chat_template", f"can't be compiled: {error}", "chat_template_error") from error

    def _marked(self, request: "_Request", traits: TemplateTraits) -> "_Request":
        """The request with marks in control tokens that its strings spell."""
        everything = [request.messages, request.tools, request.documents, request.kwargs, list(traits.literals)]
        marks = choose_marks(everything)
        request = replace(request, marks=marks)
        if self._policy.allow_special_tokens_in_content:
            return request
        # Tokens that only the template makes special (<tool_call>, <think>) are the model's own words in an
        # assistant's message, where templates look for them; anybody else's are text.
        inside = marks.inside
        special, named = self._special, self._named_by(traits)
        return replace(
            request,
            messages=[
                _marked_message(message, special if message["role"] == "assistant" else named, inside)
                for message in request.messages
            ],
            tools=named.mark(request.tools, inside),
            documents=named.mark(request.documents, inside),
            kwargs=named.mark(request.kwargs, inside),
        )

    def _named_by(self, traits: TemplateTraits) -> ControlTokenMarker:
        """For special tokens and the added ones that the template writes."""
        marker = self._named.get(traits.literals)
        if marker is None:
            _make_room(self._named)
            tokens = {token for token in self._tokenizer.added if token.strip() and traits.mentions(token)}
            marker = self._named[traits.literals] = ControlTokenMarker(tokens | self._tokenizer.special)
        return marker

    def _classic(self, template: ConversationTemplate, request: "_Request") -> str:
        if request.tools:
            raise field_error(
                "tools",
                f"the conversation template {template.name!r}, which is in force for this model, can't render tools; "
                "start the server with --chat-template checkpoint or with a template that can",
                "chat_template_error",
            )
        return render_conversation(
            template,
            request.messages,
            open_turn=request.prompt.add_generation_prompt,
            continue_last=request.prompt.continue_final_message,
        )

    def _jinja(
        self, template: JinjaTemplate, request: "_Request", now_s: float
    ) -> tuple[str, list[dict[str, Any]], list[Adjustment]]:
        """The first of the request's readings that the template accepts; if none is, the error of the first."""
        failure: TemplateFailure | None = None
        for messages, adjustments in _readings(template.traits, request):
            try:
                return self._run(template, request, messages, now_s), messages, adjustments
            except TemplateFailure as error:
                failure = failure or error
        words = _without(str(failure), request.marks)
        raise field_error("messages", f"the chat template refused them: {words}", "chat_template_error") from failure

    def _run(self, template: JinjaTemplate, request: "_Request", messages: list[dict[str, Any]], now_s: float) -> str:
        prompt = request.prompt
        if prompt.continue_final_message:
            messages = [*messages[:-1], _with_end(messages[-1], request.marks.end)]
        variables = {
            **self._special_tokens,
            **request.kwargs,
            "messages": messages,
            "tools": request.tools,
            "documents": request.documents,
            "add_generation_prompt": prompt.add_generation_prompt and not prompt.continue_final_message,
        }
        if template.compiled is None:
            text = render_in_child(template.text, variables, now_s)
        else:
            text = render_template(template.compiled, variables, now_s)
        return _cut_at_end(text, request.marks.end) if prompt.continue_final_message else text


@dataclass(frozen=True)
class _Request:
    prompt: ChatPrompt
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    documents: list[dict[str, Any]] | None
    kwargs: dict[str, Any]
    marks: Marks


def _make_room(cache: dict[Any, Any]) -> None:
    """Requests may bring a template each; what is known of them is forgotten all at once."""
    if len(cache) >= 32:
        cache.clear()


def _readings(traits: TemplateTraits, request: _Request) -> Iterator[tuple[list[dict[str, Any]], list[Adjustment]]]:
    """Ways to put the conversation to the template, the most faithful first."""
    adjustments: list[Adjustment] = []
    messages = request.messages
    spelled = spell_out_calls(messages, traits)
    if spelled is not None:
        messages = spelled
        adjustments.append(
            Adjustment("messages", "changed", "the template can't render tool calls or results: they are given as text")
        )
    declaration = None
    if request.tools and not traits.renders_tools:
        declaration = tool_declaration(request.tools)
        adjustments.append(
            Adjustment("tools", "changed", "the template never reads tools: they are declared in the system message")
        )
    first = declare_in_system(messages, declaration) if declaration else messages
    yield first, adjustments
    merged = merge_system_messages(first)
    if merged is not None:
        note = Adjustment("messages", "changed", "the template takes one system message: they were joined at the start")
        yield merged, [*adjustments, note]
    if declaration:
        yield declare_in_user(messages, declaration), adjustments


def _template_kwargs(prompt: ChatPrompt, traits: TemplateTraits) -> tuple[dict[str, Any], list[Adjustment]]:
    """The variables that the template reads, and an adjustment for each that it doesn't."""
    unused = []
    for name in prompt.template_kwargs:
        if name not in traits.reads:
            unused.append(Adjustment(f"chat_template_kwargs.{name}", "ignored", "the template never reads it"))
    return {name: value for name, value in prompt.template_kwargs.items() if name in traits.reads}, unused


def _marked_message(message: dict[str, Any], marker: ControlTokenMarker, mark: str) -> dict[str, Any]:
    marked: dict[str, Any] = {}
    for key, value in message.items():
        if key == "role":
            marked[key] = value
        elif key == "content" and isinstance(value, list):
            marked[key] = [{**part, "text": marker.mark_text(part["text"], mark)} for part in value]
        elif isinstance(value, str):
            marked[key] = marker.mark_text(value, mark)
        else:
            marked[key] = marker.mark(value, mark)
    return marked


def _with_end(message: dict[str, Any], end: str) -> dict[str, Any]:
    """The message to be continued, its text followed by a sentinel and a blank that shows whether ends are trimmed."""
    content = message["content"]
    if isinstance(content, list) and content:
        last = content[-1]
        return {**message, "content": [*content[:-1], {**last, "text": last["text"] + end + " "}]}
    if not isinstance(content, str):
        raise field_error("messages", "the final message has no content to continue", "nothing_to_continue")
    return {**message, "content": content + end + " "}


def _cut_at_end(text: str, end: str) -> str:
    place = text.rfind(end)
    if place < 0:
        raise field_error(
            "continue_final_message",
            "the chat template does not render the final message, so that it can't be continued",
            "chat_template_error",
        )
    trims = not text.startswith(" ", place + len(end))
    return text[:place].rstrip() if trims else text[:place]


def _without(value: Any, marks: Marks) -> Any:
    """The data without marks."""
    if isinstance(value, str):
        return value.replace(marks.inside, "").replace(marks.end, "")
    if isinstance(value, dict):
        return {_without(key, marks): _without(item, marks) for key, item in value.items()}
    if isinstance(value, list):
        return [_without(item, marks) for item in value]
    return value
