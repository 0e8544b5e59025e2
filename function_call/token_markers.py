"""Markers in a constraint as the tokens that they are, so that a model can't spell them out in letters."""

import re
from collections.abc import Collection
from typing import Any

Format = dict[str, Any]


def with_token_markers(form: Format, tokens: Collection[str]) -> Format:
    """The structural-tag format with every marker that is one token of the vocabulary (`tokens`) matched as that token.

    For texts that are constrained from their beginning. Triggers stay text: a marker spelled out in free text begins a call
    as well, and must be held to the schema too. Elements of free text keep their ends: those are what stops the text.
    """
    if not tokens:
        return form
    return _bound(form, re.compile("|".join(sorted(map(re.escape, tokens), key=len, reverse=True))))


def _bound(form: Format, pattern: re.Pattern[str]) -> Format:
    match form["type"]:
        case "const_string":
            parts = _parts(form["value"], pattern)
            return parts[0] if len(parts) == 1 else {"type": "sequence", "elements": parts}
        case "sequence" | "or":
            return {**form, "elements": [_bound(element, pattern) for element in form["elements"]]}
        case "optional":
            return {**form, "content": _bound(form["content"], pattern)}
        case "tags_with_separator" if not pattern.search(form["separator"]):
            return {**form, "tags": [_call(tag, pattern) for tag in form["tags"]]}
        case _:
            return form


def _call(tag: Format, pattern: re.Pattern[str]) -> Format:
    """A tag whose beginning is a token if it can be, its other literals moved into its content."""
    parts = _parts(tag["begin"], pattern)
    begin: str | Format = tag["begin"]
    rest: list[Format] = []
    if parts[0]["type"] == "token":
        begin, *rest = parts
    content = [*rest, _bound(tag["content"], pattern), *_parts(tag["end"], pattern)]
    return {"type": "tag", "begin": begin, "content": {"type": "sequence", "elements": content}, "end": ""}


def _parts(text: str, pattern: re.Pattern[str]) -> list[Format]:
    """The text as constants and tokens in turn."""
    parts: list[Format] = []
    at = 0
    for found in pattern.finditer(text):
        if found.start() > at:
            parts.append({"type": "const_string", "value": text[at : found.start()]})
        parts.append({"type": "token", "token": found.group()})
        at = found.end()
    if at < len(text):
        parts.append({"type": "const_string", "value": text[at:]})
    return parts
