"""Why a schema or pattern can't be turned into a grammar."""

from collections.abc import Sequence

Path = tuple[str | int, ...]


class GrammarRefused(ValueError):
    """The constraint is not supported, or is none. The message names the keyword and its JSON path."""


class Unsatisfiable(GrammarRefused):
    """No value satisfies this schema. A refusal where a value must be; elsewhere (an optional property, one branch of
    anyOf) the place is left out."""


def json_path(path: Sequence[str | int]) -> str:
    """As clients write it: `$.properties["first name"].items[0]`."""
    text = "$"
    for step in path:
        if isinstance(step, str) and step.replace("$", "").replace("_", "").isalnum() and step.isascii():
            text += f".{step}"
        elif isinstance(step, str):
            text += f'["{step}"]'
        else:
            text += f"[{step}]"
    return text


def refused(keyword: str, path: Sequence[str | int], reason: str) -> GrammarRefused:
    return GrammarRefused(f"JSON schema keyword {keyword!r} at {json_path(path)}: {reason}")


def unsatisfiable(path: Sequence[str | int], reason: str) -> Unsatisfiable:
    return Unsatisfiable(f"JSON schema at {json_path(path)}: no value is valid: {reason}")
