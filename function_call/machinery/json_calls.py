"""Calls that are JSON objects: `{"name": ..., "arguments": {...}}` and its variants, alone or in a list."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from function_call.machinery.json_text import JsonWriter, StringReader, Write
from function_call.machinery.reader import CutShort, Reader, Step, Unreadable
from function_call.machinery.session import Session


@dataclass(frozen=True)
class CallShape:
    """Members of the object. Arguments stream under the first name of `arguments` (the format's own) and under "arguments",
    which wins if several stand; under another they wait for the end of the object. `keyed`: the object is `{NAME: arguments}`.

    `bare`: no marker has announced a call, so the object must look like one: its first member is one of those that calls
    have, and it has arguments or the name of a declared tool.
    """

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    keyed: bool = False
    bare: bool = False
    identifier: str = ""
    """Member whose text is an id that may be passed on, if it comes before the arguments."""

    @property
    def known_members(self) -> frozenset[str]:
        return frozenset({self.name, *self.arguments, "type", "id", "function", self.identifier})


class PrefixedString:
    """A whole string value, decoded; a `Machine` that starts before the opening quote."""

    def __init__(self, write: Write) -> None:
        self.done = False
        self._write = write
        self._string: StringReader | None = None

    def feed(self, text: str, start: int) -> int:
        if self._string is None:
            if text[start] not in "\"'":
                raise Unreadable(start)
            self._string = StringReader(text[start], self._write, lenient=text[start] == "'")
            start += 1
        end = self._string.feed(text, start)
        self.done = self._string.done
        return end

    def finish(self) -> None:
        if self._string is not None:
            self._string.finish()
            self.done = self._string.done


class EncodedObject:
    """Arguments given as a JSON-encoded string: its decoded characters are an object of their own."""

    def __init__(self, write: Write) -> None:
        self.inner = JsonWriter(write)
        self.begun = False

    def write(self, text: str) -> None:
        if not self.begun:
            stripped = text.lstrip()
            if not stripped:
                return
            if stripped[0] != "{":
                raise Unreadable(len(text) - len(stripped))
            self.begun = True
        end = 0 if self.inner.done else self.inner.feed(text, 0)
        if self.inner.done and text[end:].strip():
            raise Unreadable(end)


def read_string(reader: Reader) -> Step[str]:
    """A quoted string, decoded. CutShort if the text ends in it."""
    parts: list[str] = []
    yield from reader.drive(PrefixedString(parts.append))
    return "".join(parts)


def read_object(reader: Reader, write: Write, *, python: bool = False) -> Step[None]:
    """An arguments object, written as it comes: an object, a string that encodes one, or null for none."""
    character = yield from reader.peek()
    if character == "{":
        yield from reader.drive(JsonWriter(write, python=python))
    elif character and character in "\"'":
        encoded = EncodedObject(write)
        yield from reader.drive(PrefixedString(encoded.write))
        if not encoded.begun:
            write("{}")
        elif not encoded.inner.done:
            raise Unreadable
    else:
        parts: list[str] = []
        yield from reader.drive(JsonWriter(parts.append))
        if parts != ["null"]:
            raise Unreadable
        write("{}")


class ObjectCall:
    """Reads one call object, from its opening brace on."""

    def __init__(self, session: Session, shape: CallShape, accept: Callable[[str], bool] | None = None) -> None:
        self._session = session
        self._reader = session.reader
        self._shape = shape
        self._accept = accept
        self._name: str | None = None
        self._id: str | None = None
        self._waiting: dict[str, list[str]] = {}
        self._begun = False

    def read(self) -> Step[None]:
        yield from self._reader.expect("{")
        yield from self._members(outermost=True)
        self._finish()

    def _members(self, outermost: bool) -> Step[None]:
        first = True
        while True:
            yield from self._reader.skip_blanks()
            character = yield from self._reader.peek()
            if character == "}":
                yield from self._reader.next()
                return
            if character == "," and not first:
                yield from self._reader.next()
                yield from self._reader.skip_blanks()
                if (yield from self._reader.peek()) == "}":
                    continue
            if not (yield from self._reader.peek()):
                raise CutShort
            key = yield from read_string(self._reader)
            if self._shape.bare and first and outermost and key not in self._shape.known_members:
                raise Unreadable
            first = False
            yield from self._reader.expect(":")
            yield from self._reader.skip_blanks()
            yield from self._member(key, outermost)

    def _member(self, key: str, outermost: bool) -> Step[None]:
        if self._shape.keyed:
            if self._name is not None:
                self._finish_keyed()
            self._name = key
            yield from self._arguments(key)
        elif key == self._shape.name and self._name is None:
            self._name = yield from read_string(self._reader)
            if not self._name or (self._accept is not None and not self._accept(self._name)):
                raise Unreadable
        elif key in self._shape.arguments:
            yield from self._arguments(key)
        elif outermost and key == "function" and (yield from self._reader.peek()) == "{":
            yield from self._reader.next()
            yield from self._members(outermost=False)
        elif key == self._shape.identifier:
            parts: list[str] = []
            yield from self._reader.drive(JsonWriter(parts.append))
            self._id = _identifier("".join(parts))
        else:
            yield from self._reader.drive(JsonWriter(self._session.discard))

    def _arguments(self, key: str) -> Step[None]:
        preferred = self._shape.keyed or key in (self._shape.arguments[0], "arguments")
        if self._begun:
            yield from self._reader.drive(JsonWriter(self._session.discard))
        elif preferred and self._name is not None:
            self._begin()
            yield from read_object(self._reader, self._session.arguments)
        else:
            parts: list[str] = []
            yield from read_object(self._reader, parts.append)
            self._waiting[key] = parts

    def _begin(self) -> None:
        assert self._name is not None
        self._session.start(self._name, self._id)
        self._begun = True

    def _finish_keyed(self) -> None:
        self._session.end()
        self._begun = False

    def _finish(self) -> None:
        if self._name is None:
            raise Unreadable
        if not self._begun:
            if self._shape.bare and not self._waiting and self._name not in self._session.tools:
                raise Unreadable
            self._begin()
            found = next((self._waiting[key] for key in self._shape.arguments if key in self._waiting), ["{}"])
            self._session.arguments("".join(found))
        self._session.end()


def _identifier(value: str) -> str | None:
    """A model's own id, if it has the form that Mistral asks for."""
    text = json.loads(value)
    return text if isinstance(text, str) and len(text) == 9 and text.isascii() and text.isalnum() else None


def read_calls(session: Session, shape: CallShape) -> Step[None]:
    """A call object, several with a comma, semicolon or blanks between, or a list of them. At least one, else Unreadable."""
    reader = session.reader
    yield from reader.skip_blanks()
    if (yield from reader.peek()) == "[":
        yield from reader.next()
        yield from read_list(session, shape)
        return
    while True:
        yield from ObjectCall(session, shape).read()
        yield from reader.skip_blanks()
        if (yield from reader.peek()) in (",", ";"):
            yield from reader.next()
            yield from reader.skip_blanks()
        if (yield from reader.peek()) != "{":
            return


def read_list(session: Session, shape: CallShape) -> Step[None]:
    """The rest of a list. A list that has ended early after a whole call is one that lacks its bracket."""
    reader = session.reader
    calls = 0
    while True:
        yield from reader.skip_blanks()
        character = yield from reader.peek()
        if character == "]" and (calls or not shape.bare):
            yield from reader.next()
            return
        if character == "," and calls:
            yield from reader.next()
        elif character == "{":
            yield from ObjectCall(session, shape).read()
            calls += 1
        elif not character:
            if calls:
                return
            raise CutShort
        else:
            raise Unreadable
