"""Parsing speed and its growth: every tool format over hostile text of two sizes, and over its own calls.

    python benchmarks/parsing.py [--size BYTES] [--format NAME ...] [--chunk CHARACTERS]

For each format the slowest storm is shown: microseconds a character at a tenth of the size and at the whole size (their
ratio is about 1 where work is linear), and the speed on ordinary calls.
"""

import argparse
import json
import time
from collections.abc import Iterator

from function_call.machinery.format import ToolFormat
from function_call.registry import Registry
from function_call.stream import OutputParser

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}, "data": {"type": "object"}}},
        },
    }
]


def opening(entry: ToolFormat) -> str:
    """The text of a call up to its first value, as the constrained form has it."""
    wire = entry.wire
    if wire is None:
        return entry.markers[0] if entry.markers else ""
    begin = wire.begin.replace("{name}", "look").replace("{digits}", "0")
    before = wire.element[0].replace("{key}", "text").replace("{is_string}", "true")
    return wire.open + begin + before


def storms(entry: ToolFormat, size: int) -> Iterator[tuple[str, str]]:
    """(what, text) of about `size` characters each: braces, quotes, blanks, markers and halves of markers, bare and in a call."""
    seeds = {"braces": "{", "brackets": "[", "quotes": "\"'", "backslashes": "\\", "blanks": " ", "keys": '{"a":'}
    for marker in entry.markers:
        seeds[f"marker {marker!r}"] = marker
        seeds[f"half of {marker!r}"] = marker[: max(1, len(marker) // 2)]
    for what, seed in seeds.items():
        yield what, seed * (size // len(seed))
        yield f"{what} in a call", opening(entry) + seed * (size // len(seed))


def seconds(entry: ToolFormat, text: str, chunk: int) -> float:
    parser = OutputParser(None, entry, TOOLS)
    start = time.process_time()
    for at in range(0, len(text), chunk):
        parser.feed(text[at : at + chunk])
    parser.finish("stop")
    return time.process_time() - start


def ordinary(size: int) -> str:
    call = json.dumps({"name": "look", "arguments": {"text": "some words of text " * 20, "data": {"a": [1, 2, 3]}}})
    block = f"Some words before.\n<tool_call>\n{call}\n</tool_call>\n"
    return block * (size // len(block))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--size", type=int, default=1_000_000)
    arguments.add_argument("--chunk", type=int, default=64, help="characters in one piece")
    arguments.add_argument("--format", nargs="*", default=[])
    options = arguments.parse_args()
    registry = Registry()
    entries = [registry.tool_format(name) for name in options.format] or registry.tool_formats
    print(f"{'format':20} {'slowest storm':44} {'us/char':>8} {'growth':>7}")
    for entry in entries:
        rates: dict[str, tuple[float, float]] = {}
        small = options.size // 10
        for (what, little), (_, much) in zip(storms(entry, small), storms(entry, options.size), strict=True):
            rates[what] = (
                seconds(entry, little, options.chunk) / max(1, len(little)),
                seconds(entry, much, options.chunk) / max(1, len(much)),
            )
        what = max(rates, key=lambda key: rates[key][1])
        before, after = rates[what]
        print(f"{entry.name:20} {what[:44]:44} {after * 1e6:8.2f} {after / before if before else 1:7.2f}", flush=True)
    text = ordinary(options.size)
    taken = seconds(registry.tool_format("hermes"), text, options.chunk)
    print(f"ordinary hermes calls: {len(text) / taken / 1e6:.1f} million characters a second")


if __name__ == "__main__":
    main()
