"""Calls in Python's notation: `name(key='value', other=[1, None])`."""

import json
import re

from function_call.machinery.json_text import JsonWriter
from function_call.machinery.reader import CutShort, Step, Unreadable
from function_call.machinery.session import Session

NAME = re.compile(r"[\w.\-]*")
KEYWORD = re.compile(r"\w*")


def read_python_call(session: Session) -> Step[None]:
    """One call. It begins once its name and `()` or the first keyword are certain; positional arguments make it unreadable."""
    reader = session.reader
    name = yield from reader.word(NAME)
    if (yield from reader.peek()) != "(" or not name or name[0].isdigit():
        raise Unreadable if (yield from reader.peek()) else CutShort
    yield from reader.next()
    yield from reader.skip_blanks()
    begun = False
    while (yield from reader.peek()) != ")":
        keyword = yield from reader.word(KEYWORD)
        yield from reader.expect("=")
        yield from reader.skip_blanks()
        if not keyword or (yield from reader.peek()) == "=":
            raise Unreadable
        if not begun:
            session.start(name)
        session.arguments((", " if begun else "{") + json.dumps(keyword, ensure_ascii=False) + ": ")
        begun = True
        yield from reader.drive(JsonWriter(session.arguments, python=True))
        yield from reader.skip_blanks()
        if (yield from reader.peek()) == ",":
            yield from reader.next()
            yield from reader.skip_blanks()
        elif (yield from reader.peek()) != ")":
            raise Unreadable if (yield from reader.peek()) else CutShort
    yield from reader.next()
    if not begun:
        session.start(name)
    session.arguments("}" if begun else "{}")
    session.end()


def read_python_list(session: Session, marker: str = "[") -> Step[None]:
    """The rest of `[call, call]`, its opening bracket consumed. The closing one may be missing at the end."""
    reader = session.reader
    yield from reader.skip_blanks()
    while True:
        yield from read_python_call(session)
        yield from reader.skip_blanks()
        character = yield from reader.peek()
        if character == "]":
            yield from reader.next()
            return
        if not character:
            return
        if character != ",":
            raise Unreadable
        yield from reader.next()
        yield from reader.skip_blanks()
        if (yield from reader.peek()) == "]":
            yield from reader.next()
            return


def read_python_lines(session: Session) -> Step[None]:
    """Calls with blanks or commas between, as long as there are any; at least one."""
    reader = session.reader
    yield from reader.skip_blanks()
    while True:
        yield from read_python_call(session)
        yield from reader.skip_blanks()
        if (yield from reader.peek()) == ",":
            yield from reader.next()
            yield from reader.skip_blanks()
        character = yield from reader.peek()
        if not character or not (character.isalpha() or character == "_"):
            return
