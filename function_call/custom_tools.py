"""The text of a custom tool's call, from the JSON arguments in which it travels."""

from function_call.machinery.json_calls import PrefixedString, read_string
from function_call.machinery.json_text import JsonWriter
from function_call.machinery.reader import Reader, Step, Unreadable


class CustomInput:
    """Fed the argument pieces of a call of a custom tool (`ToolRequest.custom`), returns its input text as it grows."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._text: list[str] = []
        self._steps: Step[None] | None = self._read()

    def feed(self, fragment: str) -> str:
        self._reader.push(fragment)
        if self._steps is not None:
            try:
                next(self._steps)
            except (StopIteration, Unreadable):
                self._steps = None
        text = "".join(self._text)
        self._text.clear()
        return text

    def _read(self) -> Step[None]:
        reader = self._reader
        yield from reader.expect("{")
        while True:
            yield from reader.skip_blanks()
            key = yield from read_string(reader)
            yield from reader.expect(":")
            yield from reader.skip_blanks()
            if key == "input" and (yield from reader.peek()) == '"':
                yield from reader.drive(PrefixedString(self._text.append))
                return
            yield from reader.drive(JsonWriter(lambda text: None))
            yield from reader.expect(",")
