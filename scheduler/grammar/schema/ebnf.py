"""The text of a grammar under construction, and patterns as its expressions."""

from collections.abc import Callable
from typing import Protocol

from scheduler.grammar.schema.characters import CharacterSet
from scheduler.grammar.schema.errors import GrammarRefused
from scheduler.grammar.schema.pattern import Characters, Choice, Node, Sequence

MAX_RULES = 50_000
EMPTY = '""'
_FEW = 8
"""Up to so many repetitions a class is written out."""


class GrammarText:
    """Rules by name. Equal bodies share a rule, so that repeated parts of a schema cost nothing."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._shared: dict[str, str] = {}

    def rule(self, body: str) -> str:
        """The name of a rule with this body."""
        name = self._names.get(body)
        if name is None:
            name = self._names[body] = self.declare()
            self._rules[name] = body
        return name

    def declare(self) -> str:
        """A name whose rule comes by `define`, for recursion."""
        name = f"r{len(self._rules)}"
        if len(self._rules) >= MAX_RULES:
            raise GrammarRefused(f"the grammar has more than {MAX_RULES} rules")
        self._rules[name] = EMPTY
        return name

    def define(self, name: str, body: str) -> None:
        self._rules[name] = body

    def shared(self, key: str, make: Callable[[], str]) -> str:
        """What `make` returned the first time, for rules that refer to themselves."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def text(self, root: str) -> str:
        lines = [f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._rules.items())]
        return "\n".join(lines) + "\n"


def choice(options: list[str]) -> str:
    """An expression for any of the options."""
    unique = list(dict.fromkeys(options))
    return unique[0] if len(unique) == 1 else "(" + " | ".join(unique) + ")"


def repeat(expression: str, least: int, most: int | None) -> str:
    """`expression` so many times; the expression must be a rule's name, a class or in parentheses."""
    if most == 0:
        return EMPTY
    if (least, most) == (1, 1):
        return expression
    if (least, most) == (0, 1):
        return f"{expression}?"
    if most is None and least <= 1:
        return f"{expression}{'+' if least else '*'}"
    return f"{expression}{{{least},{'' if most is None else most}}}"


class CharacterWriter(Protocol):
    def __call__(self, characters: CharacterSet, *, counted: bool = False) -> str:
        """One character of a set as an expression, "" if it holds none. `counted`: it is about to be repeated."""


def pattern_expression(node: Node, write: CharacterWriter, grammar: GrammarText, *, counted: bool = False) -> str:
    """The pattern's tree as an expression."""
    if isinstance(node, Characters):
        text = write(node.set, counted=counted)
        if not text:
            raise GrammarRefused("regular expression: a character class allows no character")
        return text
    if isinstance(node, Sequence):
        parts = [pattern_expression(part, write, grammar) for part in node.parts]
        return "(" + " ".join(parts) + ")" if parts else EMPTY
    if isinstance(node, Choice):
        return choice([pattern_expression(option, write, grammar) for option in node.options])
    inner = pattern_expression(node.part, write, grammar, counted=max(node.least, node.most or 0) > _FEW)
    if inner == EMPTY:
        return EMPTY
    if not isinstance(node.part, Characters) or not inner.startswith("["):
        inner = grammar.rule(inner)  # a name instead of the text, which nested repetitions would multiply
    return repeat(inner, node.least, node.most)
