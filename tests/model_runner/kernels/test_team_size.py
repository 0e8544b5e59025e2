"""How a team of threads shrinks beside busy neighbours, and grows again: the C++ of the pool on a clock of the test's."""

import shutil
import subprocess
from pathlib import Path

import pytest

from model_runner.kernels import library

SOURCES = Path(library.__file__).parent / "source"
HARNESS = r"""
#include <cstdio>
#include "team_size.h"

// Each line of input is a job: when it begins, how long it takes, how much of that was waiting (all in milliseconds).
int main() {
  using namespace std::chrono;
  candor::TeamSize size(4);
  int began, took, waited;
  while (std::scanf("%d %d %d", &began, &took, &waited) == 3) {
    const candor::TeamSize::Clock::time_point start{milliseconds(began)};
    size.begin(start);
    std::printf("%d\n", size.active());
    size.end(start + milliseconds(took), milliseconds(took), milliseconds(waited));
  }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("team")
    (folder / "harness.cpp").write_text(HARNESS)
    subprocess.run([compiler, "-std=c++20", f"-I{SOURCES}", "harness.cpp", "-o", "harness"], cwd=folder, check=True)
    return folder / "harness"


def sizes(program: Path, jobs: list[tuple[int, int, int]]) -> list[int]:
    """The team's size in each job."""
    lines = "".join(f"{began} {took} {waited}\n" for began, took, waited in jobs)
    output = subprocess.run([program], input=lines, capture_output=True, text=True, check=True).stdout
    return [int(line) for line in output.split()]


def test_one_bad_job_changes_nothing(program: Path) -> None:
    assert sizes(program, [(0, 10, 0), (10, 10, 10), (20, 10, 0)]) == [4, 4, 4]


def test_a_team_that_waits_for_its_cores_shrinks_and_a_later_job_finds_it_whole_again(program: Path) -> None:
    bad = [(10 * number, 10, 9) for number in range(8)]
    assert sizes(program, [*bad, (80, 10, 0), (1_000, 10, 0), (1_010, 10, 0)]) == [4] * 7 + [2, 2, 4, 4]


def test_the_pause_is_a_time_whatever_the_jobs_take(program: Path) -> None:
    """A long prompt right after the neighbour has gone must not be the first of a hundred on half the cores."""
    bad = [(10 * number, 10, 9) for number in range(7)]
    prompts = [(70 + 3_000 * number, 3_000, 0) for number in range(3)]
    assert sizes(program, [*bad, *prompts]) == [4] * 7 + [2, 4, 4]


def test_a_team_on_trial_goes_back_at_its_first_bad_job_for_longer(program: Path) -> None:
    jobs = [(10 * number, 10, 9) for number in range(7)]  # shrinks at 70, for 100 ms
    jobs += [(175, 10, 9)]  # the trial; shrinks at 185, for 200 ms
    jobs += [(300, 10, 0), (390, 10, 0)]
    assert sizes(program, jobs) == [4] * 8 + [2, 4]
