"""The grammar library without what it names and nobody uses: in a process of its own, which has loaded nothing yet."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = """
import sys
from scheduler.grammar.library import load_library
{before}
load_library()
print("transformers" in sys.modules, end=" ")
import transformers, xgrammar
info = xgrammar.TokenizerInfo([b"a", b"b", b"<end>"], stop_token_ids=[2])
matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_regex("ab"))
print(matcher.accept_token(0), matcher.accept_token(0), transformers.LogitsProcessor.__module__.split(".")[0])
"""


@pytest.mark.parametrize(("before", "there"), [("", False), ("import transformers", True)])
def test_the_library_works_without_transformers_which_still_can_be_imported(before: str, there: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(before=before)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, f"{there} True False transformers\n"), done.stderr
