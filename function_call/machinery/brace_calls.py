"""Calls in the Gemma notation: `call:name{key:<quote>text<quote>,other:[1,true]}`."""

import json
import re
from dataclasses import dataclass
from functools import cached_property

from function_call.machinery.arguments import TextValue, ValueStyle
from function_call.machinery.blocks import close_call
from function_call.machinery.coerce import STRING_ONLY, declared_types, property_schema
from function_call.machinery.json_text import DEEPEST, WORDS, escaped, number
from function_call.machinery.reader import CutShort, Markers, Step, Unreadable
from function_call.machinery.session import Session
from function_call.machinery.tagged_calls import tool_name

NAME_END = Markers("{")
KEY_END = Markers(":")
BARE = re.compile(r"[^,{}\[\]<]*")
LONGEST_BARE = 4096


@dataclass(frozen=True)
class BraceCall:
    """`quote` stands on both sides of a string, whose text has no escapes. `typed`: a quoted value of a parameter that is
    no string is read by the declared type."""

    quote: str
    closes: tuple[str, ...]
    typed: bool = False

    @cached_property
    def _quote(self) -> Markers:
        return Markers(self.quote)

    @cached_property
    def _closes(self) -> Markers:
        return Markers(*self.closes)

    def read(self, session: Session, marker: str) -> Step[None]:
        reader = session.reader
        yield from reader.skip_blanks()
        if not (yield from reader.at(CALL)):
            raise Unreadable if (yield from reader.peek()) else CutShort
        text, _ = yield from reader.text_until(NAME_END)
        name = tool_name(text)
        session.start(name)
        yield from self._container(session, name)
        session.end()
        yield from close_call(session, self._closes)

    def _container(self, session: Session, name: str) -> Step[None]:
        """The object whose brace has been consumed, and all that it holds, without recursion: nesting is the model's choice."""
        reader = session.reader
        session.arguments("{")
        stack = ["}"]
        counts = [0]
        while stack:
            yield from reader.skip_blanks()
            character = yield from reader.peek()
            if character == stack[-1]:
                session.arguments((yield from reader.next()))
                stack.pop()
                counts.pop()
                continue
            if character == "," and counts[-1]:
                yield from reader.next()
                yield from reader.skip_blanks()
                if (yield from reader.peek()) == stack[-1]:
                    continue
            if counts[-1]:
                session.arguments(", ")
            counts[-1] += 1
            key = ""
            if stack[-1] == "}":
                key = yield from self._key(session)
            yield from reader.skip_blanks()
            character = yield from reader.peek()
            if character and character in "{[":
                if len(stack) == DEEPEST:
                    raise Unreadable
                session.arguments((yield from reader.next()))
                stack.append("}" if character == "{" else "]")
                counts.append(0)
            else:
                yield from self._scalar(session, name, key if len(stack) == 1 else "")

    def _key(self, session: Session) -> Step[str]:
        reader = session.reader
        if (yield from reader.at(self._quote)):
            key, _ = yield from reader.text_until(self._quote)
            yield from reader.expect(":")
        else:
            key, _ = yield from reader.text_until(KEY_END)
            key = key.strip().strip("\"'")
            if not key or set(key) & set("{}[],"):
                raise Unreadable
        session.arguments(json.dumps(key, ensure_ascii=False) + ": ")
        return key

    def _scalar(self, session: Session, name: str, key: str) -> Step[None]:
        reader = session.reader
        if (yield from reader.at(self._quote)):
            types = STRING_ONLY
            if self.typed and key:
                schema = session.tools.schema(name)
                types = declared_types(property_schema(schema, key, schema), schema) or STRING_ONLY
            value = TextValue(session.arguments, types, ValueStyle())
            if not (yield from reader.until(self._quote, value.write)):
                raise CutShort
            value.finish()
            return
        text = yield from reader.word(BARE, LONGEST_BARE)
        word = text.strip()
        if not word:
            raise Unreadable if (yield from reader.peek()) else CutShort
        if not (yield from reader.peek()):
            raise CutShort
        session.arguments(WORDS.get(word) or number(word) or f'"{escaped(word.strip(QUOTES))}"')


QUOTES = "\"'"
CALL = Markers("call:")
