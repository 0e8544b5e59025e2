"""Constrained against free generation on a running server: what grammars cost, and what jump-forward saves.

    python -m benchmarks.structured --base-url http://127.0.0.1:30000 --model smollm2 [--rows 16,32] [--rounds 3]

Each round runs the cases one after another (free, a JSON schema of free strings, a JSON schema whose long keys and fixed
values are forced text), and the table shows medians. Free answers ignore the end of sequence, so they all have
--output-len tokens; constrained ones end when their grammar does, which is why tokens per second are compared.
"""

import argparse
import asyncio
import json
import statistics
from typing import Any

from benchmarks.serve_load import Driver, parse, summarise

STRINGS = {
    "type": "object",
    "properties": {name: {"type": "string", "minLength": 60, "maxLength": 200} for name in ("summary", "detail")},
    "required": ["summary", "detail"],
    "additionalProperties": False,
}
FORCED = {
    "type": "object",
    "properties": {
        f"a_long_property_name_that_is_forced_{index}": {"enum": ["the one value that this property can have"]}
        for index in range(8)
    },
    "additionalProperties": False,
}
FORCED["required"] = list(FORCED["properties"])  # type: ignore[call-overload]


def constrained(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "ignore_eos": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}},
    }


CASES: dict[str, dict[str, Any]] = {
    "free": {},
    "json_schema, free strings": constrained(STRINGS),
    "json_schema, forced text": constrained(FORCED),
}


def tokens_per_second(arguments: argparse.Namespace, rows: int, more: dict[str, Any], seed: str) -> float:
    flags = [
        *("--base-url", arguments.base_url, "--model", arguments.model, "--endpoint", "chat", "--temperature", "0.8"),
        *("--concurrency", str(rows), "--requests", str(2 * rows), "--input-len", "64"),
        *("--output-len", str(arguments.output_len), "--extra", json.dumps(more), "--seed", seed),
    ]
    load = parse(flags)
    answers, wall_s, _, _ = asyncio.run(Driver(load).run())
    report = summarise(load, answers, wall_s)
    if report["errors"]:
        raise RuntimeError(report["first_error"])
    return float(report["out_tok_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", default="16,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output-len", type=int, default=128)
    arguments = parser.parse_args()
    print("| rows | case | out tok/s | against free |\n|---|---|---|---|")
    for rows in map(int, arguments.rows.split(",")):
        figures: dict[str, list[float]] = {name: [] for name in CASES}
        for round_number in range(-1, arguments.rounds):
            for name, more in CASES.items():
                figure = tokens_per_second(arguments, rows, more, f"{round_number}")
                if round_number >= 0:  # the first round compiles grammars and is not counted
                    figures[name].append(figure)
        free = statistics.median(figures["free"])
        for name, values in figures.items():
            median = statistics.median(values)
            print(f"| {rows} | {name} | {median:.0f} | {median / free:.2f} x |", flush=True)


if __name__ == "__main__":
    main()
