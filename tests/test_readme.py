"""Prose goes stale in silence: what README, CONTRIBUTING and docs name must exist."""

import argparse
import re
from pathlib import Path

import pytest

from runtime.arguments import make_parser
from tests.readme_tree import ROOT, with_tree

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
# Pages about other engines' flags, or with paths of other projects, are left out where that is looked at.
OF_OURS = [page for page in PAGES if page.name not in ("contract.md", "add-a-model.md")]
OTHER_TOOLS_FLAGS = {
    "--minutes",
    "--nproc-per-node",
    "--import-mode",
    "--fix",
    "--no-verify",
    *("--pid", "--concurrency", "--requests", "--rows", "--rounds", "--output-len", "--model"),  # benchmarks
    *("--engine", "--workloads", "--alias", "--no-kv-unified"),  # benchmarks/compare.py and llama-server
    *("--wheels", "--skip-speed"),  # benchmarks/gpu_check.sh
}


def prose(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_the_file_tree_is_current() -> None:
    readme = prose(ROOT / "README.md")
    assert readme == with_tree(readme, ROOT), "python -m tests.readme_tree writes it anew"


def test_the_index_names_every_page() -> None:
    index = prose(ROOT / "docs/README.md")
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if f"]({page.name})" not in index]
    assert missing in ([], ["README.md"])


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        place, _, anchor = target.partition("#")
        file = page if not place else page.parent / place
        if "://" not in target and (not file.exists() or (anchor and anchor not in anchors(file))):
            broken.append(target)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Headings as links name them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", OF_OURS, ids=lambda page: page.name)
def test_flags_exist(page: Path) -> None:
    known = {flag for action in flags() for flag in action.option_strings} | OTHER_TOOLS_FLAGS
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", prose(page)))
    assert named - known == set()


def flags() -> list[argparse.Action]:
    return make_parser("")._actions


@pytest.mark.parametrize("page", OF_OURS, ids=lambda page: page.name)
def test_files_exist(page: Path) -> None:
    named = set(re.findall(r"`([\w.]+(?:/[\w.]+)+\.(?:py|h|cpp|md))`", prose(page)))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_make_has_the_targets(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", prose(ROOT / "Makefile"), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z]+)", prose(page), re.MULTILINE)) - targets == set()
