"""The command line: every declared flag, the spellings of other engines, and mistakes told in one sentence."""

import dataclasses

import pytest

from runtime.arguments import ALIASES, make_parser, parse_arguments
from runtime.server_args import ServerArgs
from runtime.start_error import StartError


def parse(*argv: str) -> ServerArgs:
    return parse_arguments(argv, "1.2.3")


def test_without_flags_the_declared_defaults_hold() -> None:
    assert parse() == ServerArgs()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--model", "m"], {"model_path": "m"}),
        (["--tp", "2", "--dp", "3"], {"tp_size": 2, "dp_size": 3}),
        (["--tensor-parallel-size=4"], {"tp_size": 4}),
        (["--max-model-len", "100"], {"context_length": 100}),
        (["--no-metrics"], {"metrics": False}),
        (["--enable-metrics"], {"metrics": True}),
        (["--strict"], {"strict": True}),
        (["--api-key", "a", "b", "--api-key", "c"], {"api_key": ("a", "b", "c")}),
        (["--served-model-name", "x", "y"], {"served_model_name": ("x", "y")}),
        (["--dtype", "float16"], {"dtype": "float16"}),
        (["--sse-keepalive-s", "1.5"], {"sse_keepalive_s": 1.5}),
        (["--request-timeout-s", "3"], {"request_timeout_s": 3.0}),
        (["--host", "0.0.0.0", "--port", "0"], {"host": "0.0.0.0", "port": 0}),
    ],
)
def test_flags_and_their_other_spellings(argv: list[str], expected: dict[str, object]) -> None:
    assert parse(*argv) == ServerArgs(**expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--model-pth", "x"], "there is no flag --model-pth; did you mean --model-path?"),
        (["--zzzzzzzz"], "there is no flag --zzzzzzzz; --help lists them all"),
        (["--model-pat", "x"], "did you mean --model-path?"),
        (["serve"], "there is no place for the argument 'serve'"),
        (["--dtype", "int3"], "--dtype: invalid choice: 'int3'"),
        (["--port", "http"], "--port: invalid int value: 'http'"),
        (["--port", "65536"], "--port must be from 0"),
        (["--port"], "--port: expected one argument"),
        (["--tp-size", "0"], "--tp-size must be at least 1, not 0"),
        (["--stall-timeout-s", "nan"], "--stall-timeout-s must be at least 0, not nan"),
        (["--mem-fraction-static", "1.5"], "--mem-fraction-static must be above 0"),
        (["--lookahead", "2"], "--lookahead must be 0 or 1"),
        (["--ssl-certfile", "c"], "belong together"),
        (["--speculative-algorithm", "eagle"], "--speculative-algorithm: invalid choice: 'eagle'"),
        (["--speculative-num-draft-tokens", "0"], "must be 1 or more, not 0"),
        (["--speculative-algorithm", "ngram", "--lookahead", "1"], "does not go with --lookahead 1"),
    ],
)
def test_mistakes_are_one_sentence(argv: list[str], sentence: str) -> None:
    with pytest.raises(StartError) as caught:
        parse(*argv)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_word_may_be_in_capitals() -> None:
    assert parse("--speculative-algorithm", "NGRAM").speculative_algorithm == "ngram"


def test_help_names_every_flag_with_its_group_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(ServerArgs):
        assert f"--{field.name.replace('_', '-')}" in text
        assert " ".join(field.metadata["help"].split()) in text
    assert "(default: 30000)" in text


def test_the_models_are_listed_as_they_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    listing = f"Models:\n  {'long ' * 40}\n  100% more"
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--list-models"], "1.2.3", listing)
    assert ended.value.code == 0
    assert capsys.readouterr().out == listing + "\n"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--version")
    assert capsys.readouterr().out == "candor 1.2.3\n"


def test_aliases_are_of_flags_that_exist_and_clash_with_none() -> None:
    assert set(ALIASES) <= {field.name for field in dataclasses.fields(ServerArgs)}
    make_parser("0")  # argparse refuses a name given twice
