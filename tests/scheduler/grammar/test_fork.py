"""The worker as a fork: in a process of its own, as a scheduler is at its start."""

import os
import subprocess
import sys
from pathlib import Path

from runtime.vocabulary import Vocabulary

ROOT = Path(__file__).parents[3]
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from protocol.sampling import GrammarSpec
from runtime.vocabulary import Vocabulary
from scheduler.grammar.backend import XGrammarBackend
from scheduler.grammar.compile_fork import fork_worker
from scheduler.grammar.compile_process import worker_start
from scheduler.grammar.state import XGrammarTemplate
from tests.scheduler.grammar.test_backend import configuration

def compiled(pattern):
    ticket = backend.compile(GrammarSpec("regex", pattern))
    while not (outcomes := backend.poll()):
        time.sleep(0.01)
    ((found, template),) = outcomes
    assert found == ticket and isinstance(template, XGrammarTemplate), template

config = configuration(Path(sys.argv[1]), int(sys.argv[2]))
print("flushed once")
process = fork_worker(worker_start(config))
backend = XGrammarBackend(config, process)
assert backend.wait_ready(120)
compiled("[ab]{2}")
os.kill(process.pid, signal.SIGKILL)
compiled("[ab]{3}")
assert backend.statistics()["compiler_restarts"] == 1
backend.close()
"""


def test_a_forked_worker_compiles_and_is_replaced_when_it_dies(tokenizer_file: Path, vocabulary: Vocabulary) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tokenizer_file), str(vocabulary.size)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert (done.returncode, done.stdout) == (0, "flushed once\n"), done.stderr
