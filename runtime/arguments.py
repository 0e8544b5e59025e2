"""The command line, made from the declarations in `ServerArgs`: nothing about a flag is written twice."""

import argparse
import dataclasses
import difflib
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin

from runtime.server_args import ServerArgs
from runtime.start_error import StartError

ALIASES: dict[str, tuple[str, ...]] = {
    "model_path": ("--model",),
    "tokenizer_path": ("--tokenizer",),
    "tp_size": ("--tp", "--tensor-parallel-size"),
    "dp_size": ("--dp", "--data-parallel-size"),
    "context_length": ("--max-model-len",),
    "mem_fraction_static": ("--gpu-memory-utilization",),
    "max_running_requests": ("--max-num-seqs",),
    "max_batch_tokens": ("--max-num-batched-tokens",),
    "page_size": ("--block-size",),
    "served_model_name": (),
    "metrics": ("--enable-metrics",),
    "deterministic": ("--enable-deterministic-inference",),
    "http_workers": ("--api-server-count",),
    "uds": ("--unix-socket",),
}
"""Spellings of SGLang and vLLM for flags that mean the same here."""


class _Parser(argparse.ArgumentParser):
    """Reports mistakes as StartError, without argparse's usage lines, and names the nearest flag."""

    def error(self, message: str) -> NoReturn:
        raise StartError(message)


def parse_arguments(argv: Sequence[str], version: str, models: str = "") -> ServerArgs:
    """The flags; StartError in one sentence for a mistake. --help, --version and --list-models (which prints `models`)
    print and raise SystemExit(0)."""
    parser = make_parser(version, models)
    namespace, unknown = parser.parse_known_args(argv)
    if unknown:
        raise StartError(_unknown_flag(parser, unknown[0]))
    values = vars(namespace)
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    args = ServerArgs(**values)
    _check_numbers(args)
    return args


def make_parser(version: str, models: str = "") -> argparse.ArgumentParser:
    parser = _Parser(
        prog="launch.py",
        description="Candor serves an open-weight language model behind the OpenAI API.",
        allow_abbrev=False,  # an abbreviation that is unique today is another flag tomorrow
    )
    parser.add_argument("--version", action="version", version=f"candor {version}")
    parser.add_argument("--list-models", action=_Print, const=models, help="show the supported models and exit")
    types_of_fields = typing.get_type_hints(ServerArgs)
    groups: dict[str, argparse._ArgumentGroup] = {}
    for field in dataclasses.fields(ServerArgs):
        group = field.metadata["group"]
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        _add_flag(groups[group], field, types_of_fields[field.name])
    return parser


def _add_flag(group: argparse._ArgumentGroup, field: dataclasses.Field[Any], annotation: Any) -> None:
    names = ("--" + field.name.replace("_", "-"), *ALIASES.get(field.name, ()))
    options: dict[str, Any] = {"dest": field.name, "default": field.default}
    options["help"] = (field.metadata["help"] + _default_text(field.default)).replace("%", "%%")
    inner = _without_none(annotation)
    if inner is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif get_origin(inner) is Literal:
        options |= {"choices": get_args(inner), "type": str.lower}  # SGLang's words are partly in capitals
    elif get_origin(inner) is tuple:
        # Both `--api-key A B` and `--api-key A --api-key B`.
        options |= {"nargs": "+", "action": _Collect, "metavar": field.metadata["metavar"] or "VALUE"}
    else:
        options |= {"type": inner, "metavar": field.metadata["metavar"] or _METAVARS[inner]}
    group.add_argument(*names, **options)


_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "TEXT"}


class _Print(argparse.Action):
    """Prints its constant as it is (argparse's own "version" would wrap it) and ends."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, const=const, default=argparse.SUPPRESS, help=help)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        print(self.const)
        parser.exit()


class _Collect(argparse.Action):
    """Appends to what was given so far; argparse's own "extend" would append to the default tuple and fail."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, (*(getattr(namespace, self.dest) or ()), *values))


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (typing.Union, types.UnionType):
        (inner,) = (member for member in get_args(annotation) if member is not type(None))
        return inner
    return annotation


def _default_text(default: Any) -> str:
    if default is None or default == () or default == "":
        return ""
    if isinstance(default, bool):
        return f" (default: {'yes' if default else 'no'})"
    return f" (default: {default})"


def _unknown_flag(parser: argparse.ArgumentParser, given: str) -> str:
    if not given.startswith("-"):
        return f"there is no place for the argument {given!r}: every setting is a flag (--model-path ...)"
    flag = given.partition("=")[0]
    near = difflib.get_close_matches(flag, list(parser._option_string_actions), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "; --help lists them all"
    return f"there is no flag {flag}{hint}"


_AT_LEAST: dict[str, float] = {
    "context_length": 1,
    "http_workers": 1,
    "tokenizer_workers": 1,
    "detokenizer_workers": 1,
    "tp_size": 1,
    "dp_size": 1,
    "nnodes": 1,
    "node_rank": 0,
    "page_size": 1,
    "max_total_tokens": 1,
    "max_running_requests": 1,
    "max_queued_requests": 0,
    "max_running_per_key": 1,
    "max_batch_tokens": 1,
    "chunked_prefill_size": 1,
    "max_body_bytes": 1,
    "threads": 1,
    "max_restarts": 0,
    "restart_window_s": 0,
    "stall_timeout_s": 0,
    "start_timeout_s": 0,
    "drain_timeout_s": 0,
    "sse_keepalive_s": 0,
    "slow_client_timeout_s": 0,
    "grammar_compile_timeout_s": 0,
    "max_itl_ms": 0,
    "request_timeout_s": 0,
}


def _check_numbers(args: ServerArgs) -> None:
    for name, least in _AT_LEAST.items():
        value = getattr(args, name)
        # `not >=` refuses NaN, too.
        if value is not None and not value >= least:
            raise StartError(f"--{name.replace('_', '-')} must be at least {least:g}, not {value}")
    if not 0 <= args.port <= 65535:
        raise StartError(f"--port must be from 0 (any free one) to 65535, not {args.port}")
    if not 0 < args.mem_fraction_static <= 1:
        raise StartError(f"--mem-fraction-static must be above 0 and at most 1, not {args.mem_fraction_static}")
    if args.lookahead is not None and args.lookahead not in (0, 1):
        raise StartError(f"--lookahead must be 0 or 1, not {args.lookahead}")
    if args.speculative_num_draft_tokens < 1:
        raise StartError(
            f"--speculative-num-draft-tokens must be 1 or more, not {args.speculative_num_draft_tokens};"
            " --speculative-algorithm none turns speculation off"
        )
    if args.speculative_algorithm == "ngram" and args.lookahead:
        raise StartError("--speculative-algorithm ngram guesses from results: it does not go with --lookahead 1")
    if args.max_running_per_key is not None and not args.api_key:
        raise StartError("--max-running-per-key counts by API key: give keys with --api-key")
    if (args.ssl_certfile is None) != (args.ssl_keyfile is None):
        raise StartError("--ssl-certfile and --ssl-keyfile belong together")
