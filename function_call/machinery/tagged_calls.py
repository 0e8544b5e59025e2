"""Calls whose arguments stand between tags: `<key>..</key><value>..</value>` pairs, or XML-ish elements with a name."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from function_call.machinery.arguments import ArgumentsWriter, ValueStyle
from function_call.machinery.coerce import ANY_JSON, STRING_ONLY
from function_call.machinery.json_calls import read_object
from function_call.machinery.reader import CutShort, Markers, Step, Unreadable
from function_call.machinery.session import Session

NAME = re.compile(r"[^\s<>{}\"'=|]+")
LITERAL_NEWLINE = Markers("\\n")
ATTRIBUTE = re.compile(r"""\s*([\w:]*)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")


def tool_name(text: str) -> str:
    """The name in the text; Unreadable if that can't be one."""
    name = text.strip().removesuffix("\\n").strip()
    if not NAME.fullmatch(name):
        raise Unreadable
    return name


def finish_open_call(session: Session, arguments: ArgumentsWriter) -> None:
    """The answer ended where the call's end marker should stand: whole if the model stopped by itself, not if it was cut."""
    if session.reader.cut:
        raise CutShort
    arguments.close()
    session.end()


@dataclass(frozen=True)
class KeyValueCall:
    """NAME [`name_ends`] { `key_open` key `key_close` [type] `value_open` value `value_close` } `closes`."""

    key_open: str
    value_open: str
    value_close: str
    closes: tuple[str, ...]
    key_close: str = ""
    """"" if the key ends at `value_open`."""
    name_ends: tuple[str, ...] = ("\n",)
    type_tags: tuple[str, str] | None = None
    next_opens: tuple[str, ...] = ()
    """Openings of the next call, which end this one if its own end is missing."""
    value_ends: tuple[str, ...] = ()
    """Markers that end a value whose own end is missing."""
    style: ValueStyle = field(default_factory=ValueStyle)

    @cached_property
    def _after_name(self) -> Markers:
        return Markers(*self.name_ends, self.key_open, *self.closes, *self.next_opens)

    @cached_property
    def _inside(self) -> Markers:
        return Markers(self.key_open, *self.closes, *self.next_opens)

    @cached_property
    def _key_end(self) -> Markers:
        return Markers(self.key_close or self.value_open)

    @cached_property
    def _type_end(self) -> Markers:
        return Markers(*(self.type_tags or ())[1:])

    @cached_property
    def _after_key(self) -> Markers:
        types = self.type_tags[:1] if self.type_tags else ()
        return Markers(self.value_open, self.key_open, *self.closes, *types)

    @cached_property
    def _value_ends(self) -> Markers:
        return Markers(self.value_close, *self.value_ends)

    def read(self, session: Session, marker: str) -> Step[None]:
        reader = session.reader
        text, end = yield from reader.text_until(self._after_name)
        name = tool_name(text)
        if end in self.name_ends:
            yield from reader.skip_blanks()
            end = yield from reader.at(self._inside)
            if not end and (yield from reader.peek()):
                raise Unreadable
        session.start(name)
        arguments = ArgumentsWriter(session, name, self.style)
        while end == self.key_open:
            end = yield from self._pair(session, arguments)
            if not end:
                yield from self._blanks(session)
                end = yield from reader.at(self._inside)
        if not end and not (yield from reader.peek()):
            finish_open_call(session, arguments)
            return
        arguments.close()
        session.end()
        if end in self.next_opens:
            reader.unread(end)

    def _pair(self, session: Session, arguments: ArgumentsWriter) -> Step[str]:
        """A key and its value. Returns a marker if one was met that ends the pair early, "" otherwise."""
        reader = session.reader
        types: frozenset[str] | None = None
        key, end = yield from reader.text_until(self._key_end)
        while self.key_close or end != self.value_open:
            yield from self._blanks(session)
            end = yield from reader.at(self._after_key)
            if not end:
                raise Unreadable if (yield from reader.peek()) else CutShort
            if self.type_tags and end == self.type_tags[0]:
                written, _ = yield from reader.text_until(self._type_end)
                types = frozenset({written.strip()})
            elif end == self.value_open:
                break
            else:
                return end
        key = key.strip()
        declared = arguments.declared(key)
        value = arguments.value(key, types if types and len(declared - {"null"}) != 1 else declared)
        end = yield from reader.until(self._value_ends, value.write)
        if not end:
            raise CutShort
        value.finish()
        if end != self.value_close:
            reader.unread(end)
        return ""

    def _blanks(self, session: Session) -> Step[None]:
        """Blanks between tags, and newlines that the model wrote as two characters."""
        while True:
            yield from session.reader.skip_blanks()
            if not (yield from session.reader.at(LITERAL_NEWLINE)):
                return


@dataclass(frozen=True)
class ElementCall:
    """`OPEN`NAME`>` { `PARAM`KEY`>` value `PARAM END` } `END`.

    `header` says how NAME and KEY stand: right after the opening (`<function=NAME>`), or as an attribute
    (`<invoke name="NAME">`). The opening marker of the call has been consumed.
    """

    param_opens: tuple[str, ...]
    param_closes: tuple[str, ...]
    closes: tuple[str, ...]
    header: Literal["plain", "attribute"] = "attribute"
    header_end: str = ">"
    loose_value_ends: bool = False
    """A value also ends at the next parameter or at the end of the call, if its own end is missing."""
    typed: bool = False
    """An attribute `string="true|false"` says whether a value is text or JSON."""
    json_body: bool = False
    cdata: bool = False
    doubled_names: bool = False
    """`look.look` means the declared tool `look`."""
    wrapper: tuple[str, ...] = ()
    """Tags round the parameters that mean nothing."""
    style: ValueStyle = field(default_factory=ValueStyle)

    @cached_property
    def _header_end(self) -> Markers:
        return Markers(self.header_end)

    @cached_property
    def _inside(self) -> Markers:
        return Markers(*self.param_opens, *self.closes, *self.wrapper)

    @cached_property
    def _closes(self) -> Markers:
        return Markers(*self.closes)

    @cached_property
    def _value_ends(self) -> Markers:
        loose = (*self.param_opens, *self.closes) if self.loose_value_ends else ()
        return Markers(*self.param_closes, *loose)

    def read(self, session: Session, marker: str) -> Step[None]:
        reader = session.reader
        header, _ = yield from reader.text_until(self._header_end)
        name = tool_name(self._name(header))
        first, _, second = name.partition(".")
        if self.doubled_names and first == second and name not in session.tools:
            name = first
        yield from reader.skip_blanks()
        if self.json_body and (yield from reader.peek()) == "{":
            session.start(name)
            yield from read_object(reader, session.arguments)
            session.end()
            yield from reader.skip_blanks()
            yield from reader.at(self._closes)
            return
        end = yield from reader.at(self._inside)
        if not end:
            raise Unreadable if (yield from reader.peek()) else CutShort
        session.start(name)
        arguments = ArgumentsWriter(session, name, self.style)
        while end in self.param_opens or end in self.wrapper:
            if end in self.param_opens:
                yield from self._parameter(session, arguments)
            yield from reader.skip_blanks()
            end = yield from reader.at(self._inside)
        if not end and not (yield from reader.peek()):
            finish_open_call(session, arguments)
            return
        arguments.close()
        session.end()

    def _name(self, header: str) -> str:
        if self.header == "plain":
            return header.strip().strip("\"'")
        found = _attributes(header).get("name")
        if found is None:
            raise Unreadable
        return found

    def _parameter(self, session: Session, arguments: ArgumentsWriter) -> Step[None]:
        reader = session.reader
        header, _ = yield from reader.text_until(self._header_end)
        key = self._name(header)
        types: frozenset[str] | None = None
        as_json = False
        if self.typed:
            written = _attributes(header).get("string")
            types = STRING_ONLY if written == "true" else None
            as_json = written == "false"
        value = arguments.value(key, ANY_JSON if as_json else types)
        if self.cdata:
            yield from reader.skip_blanks()
            if (yield from reader.at(CDATA_OPEN)):
                if not (yield from reader.until(CDATA_CLOSE, value.write_plain)):
                    raise CutShort
                yield from reader.skip_blanks()
        end = yield from reader.until(self._value_ends, value.write)
        if not end:
            raise CutShort
        value.finish()
        if end not in self.param_closes:
            reader.unread(end)


BYTE_LEVEL_BLANKS = "\u0120\u010a"
"""A blank and a newline as byte-level vocabularies write them, where nobody has decoded them."""
CDATA_OPEN = Markers("<![CDATA[")
CDATA_CLOSE = Markers("]]>")


def _attributes(header: str) -> dict[str, str]:
    """The attributes of a tag, quotes of either kind or none. One that has lost its own name
    (the opening marker ended with it, or swallowed it) is the name."""
    found: dict[str, str] = {}
    for match in ATTRIBUTE.finditer(header):
        key, *values = match.groups()
        found.setdefault(key.lstrip(BYTE_LEVEL_BLANKS) or "name", next(value for value in values if value is not None))
    return found
