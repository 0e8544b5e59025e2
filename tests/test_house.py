"""The house rules that a machine can hold: sizes, names, docstrings, where imports stand, what a process loads."""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = (
    "protocol",
    "runtime",
    "http_frontend",
    "tokenizer_manager",
    "scheduler",
    "model_runner",
    "detokenizer",
    "function_call",
)
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
BANNED_WORDS = {"util", "utils", "helper", "helpers", "misc"}
# Optional GPU libraries, imported where they are used because most hosts lack them.
OPTIONAL_LIBRARIES = {"flashinfer", "sgl_kernel"}

NATIVE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
SOURCES = sorted([ROOT / "launch.py", *(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))])
NATIVE_SOURCES = sorted(file for room in ROOMS for file in (ROOT / room).rglob("*") if file.suffix in NATIVE_SUFFIXES)
NAMES = [str(file.relative_to(ROOT)) for file in SOURCES]

FORBIDDEN_MODULES = {
    "http_frontend.process": ("torch", "transformers", "xgrammar", "tokenizers"),
    "tokenizer_manager.process": ("torch", "transformers", "xgrammar", "fastapi"),
    "detokenizer.process": ("torch", "transformers", "xgrammar", "fastapi", "jinja2"),
    "scheduler.process": ("fastapi", "transformers.models"),
    "launch": ("torch", "transformers", "xgrammar", "fastapi"),
}


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("file", SOURCES, ids=NAMES)
def test_a_file_is_short_and_says_what_it_is(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "no docstring"
    long = [(function.name, lines(function)) for function in functions(tree) if lines(function) > MAX_FUNCTION_LINES]
    assert long == [], f"functions of more than {MAX_FUNCTION_LINES} lines"


@pytest.mark.parametrize("file", NATIVE_SOURCES, ids=lambda file: file.name)
def test_a_native_file_is_short_and_says_what_it_is(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    assert text.startswith("// "), "no comment that says what it is"


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


@pytest.mark.parametrize("file", SOURCES, ids=NAMES)
def test_imports_stand_at_the_top(file: Path) -> None:
    late = [
        f"line {node.lineno}"
        for function in functions(ast.parse(file.read_text()))
        for node in ast.walk(function)
        if (
            isinstance(node, ast.Import)
            and not {name.name.partition(".")[0] for name in node.names} <= OPTIONAL_LIBRARIES
        )
        or (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] not in OPTIONAL_LIBRARIES)
    ]
    assert late == []


@pytest.mark.parametrize("name", NAMES)
def test_names_say_something(name: str) -> None:
    words = {word for part in Path(name).with_suffix("").parts for word in part.split("_")}
    assert not words & BANNED_WORDS


@pytest.mark.parametrize(
    "file", [file for file in SOURCES if file.name == "__init__.py"], ids=lambda file: file.parent.name
)
def test_a_folder_s_init_is_a_docstring_and_nothing_else(file: Path) -> None:
    (statement,) = ast.parse(file.read_text()).body
    assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


@pytest.mark.parametrize("module", FORBIDDEN_MODULES)
def test_a_process_loads_only_what_it_needs(module: str) -> None:
    assert importlib.util.find_spec(module) is not None
    forbidden = FORBIDDEN_MODULES[module]
    script = f"import sys, {module}; print(sorted(set({forbidden!r}) & set(sys.modules)))"
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert finished.stdout.strip() == "[]", finished.stderr
