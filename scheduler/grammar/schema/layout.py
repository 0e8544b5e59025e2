"""Where a grammar allows whitespace between the tokens of JSON."""

from dataclasses import dataclass

from protocol.sampling import JsonWhitespace
from scheduler.grammar.schema.ebnf import EMPTY, GrammarText

_BOUNDED = '(" " | "\\n" [ \\t]{0,32})?'
"""At most one space, or a new line with its indentation: pretty-printed JSON passes, a model's loop on spaces doesn't."""

_ANY = "[ \\n\\r\\t]*"


@dataclass(frozen=True)
class Layout:
    """Expressions for what stands between the tokens."""

    inside: str  # after an opening bracket and before a closing one
    comma: str
    colon: str

    def enclosed(self, opening: str, body: str, closing: str) -> str:
        if body == EMPTY:
            parts = [opening, self.inside, closing]
        else:
            parts = [opening, self.inside, body, self.inside, closing]
        return "(" + " ".join(part for part in parts if part != EMPTY) + ")"


def layout(whitespace: JsonWhitespace, grammar: GrammarText) -> Layout:
    """ "compact" is what `json.dumps` writes by default, on one line; models know it best, and most of it is forced."""
    if whitespace == "compact":
        return Layout(EMPTY, '", "', '": "')
    space = grammar.rule(_BOUNDED if whitespace == "bounded" else _ANY)
    return Layout(space, f'({space} "," {space})', f'({space} ":" {space})')
