"""Arguments written as keys and bare text, turned into a growing JSON object."""

import html
import json
import re
from dataclasses import dataclass
from typing import Literal

from function_call.machinery.coerce import NULLABLE_STRING, STRING_ONLY, coerce, declared_types, property_schema
from function_call.machinery.json_text import Write, escaped
from function_call.machinery.session import Session

ENTITY_BEGINNING = re.compile(r"&#?[0-9A-Za-z]{0,31}\Z")
LONGEST_NULL = 64
"""A nullable string is undecided only this long: no model pads the word null with more blanks."""


@dataclass(frozen=True)
class ValueStyle:
    """How a value stands between its tags. `trim`: one newline at each end, or all blanks, are framing."""

    trim: Literal["nothing", "newline", "blanks"] = "nothing"
    entities: bool = False
    undeclared_json: bool = False
    first_wins: bool = False
    """A repeated key keeps its first value (elsewhere the last one counts, as in JSON)."""


class Trimmer:
    """Takes framing off both ends of a text that comes in pieces."""

    def __init__(self, style: Literal["nothing", "newline", "blanks"], write: Write) -> None:
        self._style = style
        self._write = write
        self._begun = style == "nothing"
        self._held: list[str] = []

    def write(self, text: str) -> None:
        if not text:
            return
        if not self._begun:
            if self._style == "blanks":
                text = text.lstrip()
            elif text.startswith("\n"):
                text = text[1:]
                self._begun = True
            if not text:
                return
            self._begun = True
        body = text.rstrip() if self._style == "blanks" else text.removesuffix("\n")
        if self._style == "nothing":
            body = text
        if self._held and (body or self._style == "newline"):
            for held in self._held:
                self._write(held)
            self._held = []
        if body:
            self._write(body)
        if len(body) < len(text):
            self._held.append(text[len(body) :])


class EntityDecoder:
    """`&amp;` and its kin to characters, in a text that comes in pieces."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._held = ""

    def write(self, text: str) -> None:
        text = self._held + text
        beginning = ENTITY_BEGINNING.search(text, max(0, len(text) - 40))
        end = beginning.start() if beginning else len(text)
        self._held = text[end:]
        if end:
            self._write(_unescape(text[:end]))

    def finish(self) -> None:
        if self._held:
            self._write(self._held)
        self._held = ""


def _unescape(text: str) -> str:
    """Only entities that are closed: html.unescape would also read `&lt` in `a &lt b`, depending on where the text ends."""
    return re.sub(r"&#?[0-9A-Za-z]{1,31};", lambda found: html.unescape(found.group()), text)


class ArgumentsWriter:
    """The arguments of one call. Strings stream as they grow, other values come when they are whole."""

    def __init__(self, session: Session, name: str, style: ValueStyle) -> None:
        self._session = session
        self._schema = session.tools.schema(name)
        self._style = style
        self._keys: set[str] = set()

    def value(self, key: str, types: frozenset[str] | None = None) -> "TextValue":
        """Begins a value; `types` overrides the declared ones (formats that write the type down)."""
        write: Write = self._session.arguments
        if self._style.first_wins and key in self._keys:
            write = self._session.discard
        else:
            write(("{" if not self._keys else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            self._keys.add(key)
        if types is None:
            types = self.declared(key)
        return TextValue(write, types, self._style)

    def put(self, key: str, value: str) -> None:
        """A value that is JSON already."""
        self._session.arguments(("{" if not self._keys else ", ") + json.dumps(key, ensure_ascii=False) + ": " + value)
        self._keys.add(key)

    def declared(self, key: str) -> frozenset[str]:
        return declared_types(property_schema(self._schema, key, self._schema), self._schema)

    def close(self) -> None:
        self._session.arguments("}" if self._keys else "{}")


class TextValue:
    """One value, written as its text comes."""

    def __init__(self, write: Write, types: frozenset[str], style: ValueStyle) -> None:
        self._write_json = write
        self._types = types
        self._style = style
        self._mode: Literal["string", "undecided", "whole"] = "whole"
        self._parts: list[str] = []
        self._entities = EntityDecoder(self._accept) if style.entities else None
        self._trimmer = Trimmer(style.trim, self._entities.write if self._entities else self._accept)
        if types == STRING_ONLY or (not types and not style.undeclared_json):
            self._begin_string()
        elif types == NULLABLE_STRING:
            self._mode = "undecided"

    def write(self, text: str) -> None:
        self._trimmer.write(text)

    def write_plain(self, text: str) -> None:
        """Text that is taken as it is: nothing is trimmed or decoded (CDATA)."""
        self._accept(text)

    def finish(self) -> None:
        if self._entities:
            self._entities.finish()
        if self._mode == "string":
            self._write_json('"')
        else:
            whole = "".join(self._parts)
            self._write_json(coerce(whole, self._types, undeclared_json=self._style.undeclared_json))

    def _begin_string(self) -> None:
        self._mode = "string"
        self._write_json('"')

    def _accept(self, text: str) -> None:
        if self._mode == "string":
            self._write_json(escaped(text))
            return
        self._parts.append(text)
        if self._mode == "undecided":
            so_far = "".join(self._parts)
            word = so_far.strip().lower()
            if len(so_far) > LONGEST_NULL or not ("null".startswith(word) or "none".startswith(word)):
                self._begin_string()
                self._write_json(escaped(so_far))
                self._parts = []
