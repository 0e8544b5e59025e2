"""The file tree of README.md, made from what each file says of itself: `python -m tests.readme_tree` writes it anew."""

import ast
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- tree: begin -->", "<!-- tree: end -->"
LISTED = (
    "launch.py",
    "protocol",
    "runtime",
    "http_frontend",
    "tokenizer_manager",
    "scheduler",
    "model_runner",
    "detokenizer",
    "function_call",
    "benchmarks",
    "docs",
    "tests",
    "constraints",
    "Makefile",
    "pyproject.toml",
)
SUFFIXES = (".py", ".h", ".cpp", ".md", ".txt")
SAID_HERE = {
    "benchmarks": "What things cost: run by hand, each says how.",
    "docs": "Documentation; its own index is docs/README.md.",
    "tests": "Tests mirror the tree. At their top is what belongs to no single room.",
    "constraints": "Versions that this was tested with.",
    "model_runner/kernels/source": "C++, compiled once for the processor at hand.",
    "Makefile": "make serve, make test, make check.",
    "pyproject.toml": "Dependencies, lint and type rules, import contracts.",
}
COLUMN = 44


def tree(root: Path) -> str:
    """One line for each file of the product, and for each folder of tests."""
    lines: list[str] = []
    for name in LISTED:
        lines += _lines(root, root / name, depth=0)
    return "\n".join(lines) + "\n"


def with_tree(document: str, root: Path) -> str:
    """The document with the text between its markers replaced. ValueError if it has none."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n```\n{tree(root)}```\n\n{END}{after}"


def _lines(root: Path, path: Path, depth: int) -> Iterator[str]:
    name = path.name + ("/" if path.is_dir() else "")
    yield f"{'  ' * depth + name:<{COLUMN}} {_description(root, path)}".rstrip()
    if not path.is_dir():
        return
    if path.parent == root / "tests":
        return
    for entry in sorted(path.iterdir(), key=lambda entry: (entry.is_dir(), entry.name)):
        is_folder = entry.is_dir() and not entry.name.startswith(("_", "."))
        if is_folder or (entry.suffix in SUFFIXES and entry.name != "__init__.py"):
            yield from _lines(root, entry, depth + 1)


def _description(root: Path, path: Path) -> str:
    place = str(path.relative_to(root))
    if place in SAID_HERE:
        return SAID_HERE[place]
    if path.is_dir():
        owner = path / "__init__.py"
        return _description(root, owner) if owner.is_file() else f"Tests of {path.name}/."
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return _sentence(ast.get_docstring(ast.parse(text)) or "")
    mark = "// " if path.suffix in (".h", ".cpp") else "# "
    said = takewhile(lambda line: line.startswith(mark), text.splitlines())
    return _sentence(" ".join(line.removeprefix(mark) for line in said))


def _sentence(text: str) -> str:
    """The first sentence, without its stop."""
    joined = " ".join(text.split("\n\n")[0].split())
    return re.split(r"\.(?=\s+[A-Z`]|$)", joined, maxsplit=1)[0]


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(with_tree(readme.read_text(encoding="utf-8"), ROOT), encoding="utf-8")
