"""Arguments as nested elements behind a namespace token: MiniMax-M3."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from function_call.machinery.arguments import ArgumentsWriter, ValueStyle
from function_call.machinery.coerce import STRING_ONLY, Schema, coerce, declared_types, property_schema, resolved
from function_call.machinery.reader import CutShort, Markers, Reader, Step, Unreadable
from function_call.machinery.session import Session
from function_call.machinery.tagged_calls import finish_open_call, tool_name

TAG_END = Markers(">")
DEEPEST = 100
NAME_ATTRIBUTE = re.compile(r"""invoke\s+name\s*=\s*["']?([^"'>]+)["']?""")


@dataclass
class Element:
    """One element as read so far: text, or children in order."""

    key: str
    text: list[str] = field(default_factory=list)
    children: list["Element"] = field(default_factory=list)


@dataclass(frozen=True)
class NestedElements:
    """`NS<key>` text or elements `NS</key>`: a `<` without the namespace token before it is data."""

    namespace: Markers

    def tag(self, reader: Reader) -> Step[str]:
        """The tag after a namespace token that has been consumed, without its brackets."""
        yield from reader.expect("<")
        text, _ = yield from reader.text_until(TAG_END)
        return text.strip()

    def read_invoke(self, session: Session, header: str) -> Step[None]:
        """The rest of an invoke, its tag consumed."""
        found = NAME_ATTRIBUTE.fullmatch(header)
        if not found:
            raise Unreadable
        reader = session.reader
        name = tool_name(found[1])
        session.start(name)
        arguments = ArgumentsWriter(session, name, ValueStyle())
        schema = session.tools.schema(name)
        while True:
            yield from reader.skip_blanks()
            if not (yield from reader.at(self.namespace)):
                if (yield from reader.peek()):
                    raise Unreadable
                finish_open_call(session, arguments)
                return
            tag = yield from self.tag(reader)
            if tag == "/invoke":
                arguments.close()
                session.end()
                return
            if tag.startswith("/"):
                raise Unreadable
            if arguments.declared(tag) == STRING_ONLY:
                value = arguments.value(tag)
                if not (yield from reader.until(self.namespace, value.write)):
                    raise CutShort
                if (yield from self.tag(reader)) != f"/{tag}":
                    raise Unreadable
                value.finish()
            else:
                element = yield from self._element(reader, tag)
                arguments.put(tag, _value(element, property_schema(schema, tag, schema), schema))

    def _element(self, reader: Reader, key: str) -> Step[Element]:
        """A whole element with all that it holds."""
        root = Element(key)
        stack = [root]
        while True:
            if not (yield from reader.until(self.namespace, stack[-1].text.append)):
                raise CutShort
            tag = yield from self.tag(reader)
            if tag == f"/{stack[-1].key}":
                done = stack.pop()
                if not stack:
                    return root
                stack[-1].children.append(done)
            elif tag.startswith("/") or len(stack) == DEEPEST:
                raise Unreadable
            else:
                stack.append(Element(tag))


def _value(element: Element, schema: Any, root: Schema) -> str:
    """The element as JSON, its schema steering: children are items of an array or members of an object."""
    types = declared_types(schema, root)
    if not element.children:
        text = "".join(element.text)
        if not text.strip() and ("object" in types or "array" in types):
            return "{}" if "object" in types else "[]"
        return coerce(text, types)
    schema = resolved(schema, root)
    if all(child.key == "item" for child in element.children) and "object" not in types:
        items = schema.get("items") if isinstance(schema, Mapping) else None
        return "[" + ", ".join(_value(child, items, root) for child in element.children) + "]"
    members: dict[str, list[str]] = {}
    for child in element.children:
        member = property_schema(schema, child.key, root) if isinstance(schema, Mapping) else None
        members.setdefault(child.key, []).append(_value(child, member, root))
    written = (
        f"{json.dumps(key, ensure_ascii=False)}: {values[0] if len(values) == 1 else '[' + ', '.join(values) + ']'}"
        for key, values in members.items()
    )
    return "{" + ", ".join(written) + "}"
