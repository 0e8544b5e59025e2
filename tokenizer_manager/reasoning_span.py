"""Where reasoning begins and ends in ids, and whether the prompt has opened it."""

from protocol.requests import ChatPrompt, Prompt
from protocol.sampling import ReasoningFormat, ReasoningSpan
from tokenizer_manager.tokenization import TextTokenizer


def reasoning_span(
    reasoning: ReasoningFormat, prompt: Prompt, rendered: str, tokenizer: TextTokenizer
) -> ReasoningSpan | None:
    """The span of a prompt whose text is `rendered`; None where the markers are no text to look for."""
    if not reasoning.open.strip() or not reasoning.close.strip():
        return None
    return ReasoningSpan(
        open_ids=_marker_ids(reasoning.open, tokenizer),
        close_ids=_marker_ids(reasoning.close, tokenizer),
        prompt_opened=prompt_opens(reasoning, prompt, rendered),
        open_texts=_texts(reasoning.open, *reasoning.other_opens),
        close_texts=_texts(reasoning.close, *reasoning.other_closes),
        tool_texts=_texts(*reasoning.tool_opens),
    )


def _texts(*markers: str) -> tuple[str, ...]:
    return tuple(filter(None, dict.fromkeys(marker.strip() for marker in markers)))


def _marker_ids(marker: str, tokenizer: TextTokenizer) -> tuple[int, ...]:
    """The marker's ids inside a text: at the start of one, SentencePiece would put a blank before it."""
    before, ids = tokenizer.encode("\n"), tokenizer.encode("\n" + marker)
    if before and ids[: len(before)] == before:
        return tuple(ids[len(before) :])
    return tuple(tokenizer.encode(marker))


def prompt_opens(reasoning: ReasoningFormat, prompt: Prompt, rendered: str) -> bool:
    """Whether output begins inside reasoning: the prompt's end tells, and the format's habit where it doesn't."""
    opens = _texts(reasoning.open, *reasoning.other_opens)
    closes = _texts(reasoning.close, *reasoning.other_closes)
    text = rendered.rstrip()
    if text.endswith(closes):
        return False
    if text.endswith(opens):
        return True
    if isinstance(prompt, ChatPrompt) and prompt.continue_final_message:
        # The continued message may stand in the middle of its reasoning, or behind it.
        final = _final_text(prompt)
        opened, closed = (max(map(final.rfind, markers)) for markers in (opens, closes))
        if opened >= 0 or closed >= 0:
            return opened > closed
    return reasoning.always


def _final_text(prompt: ChatPrompt) -> str:
    content = prompt.messages[-1].get("content")
    if isinstance(content, list):
        return "\n".join(part.get("text", "") if isinstance(part, dict) else str(part) for part in content)
    return content or ""
