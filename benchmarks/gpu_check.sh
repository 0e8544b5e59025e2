#!/usr/bin/env bash
# One command for the first hour on a GPU host: installs what is missing, then runs `python -m benchmarks.gpu_check`.
#
#   benchmarks/gpu_check.sh [--wheels FOLDER] [options of gpu_check, such as --skip-speed]
#
# --wheels FOLDER installs from the wheels in that folder alone (those of constraints/cuda.txt and what they need, and
# setuptools), for hosts without a package index. docs/gpu.md says what each part shows.
set -euo pipefail

if [[ "${1:-}" == "--wheels" ]]; then
    # pip reads these, also where it builds the package in an environment of its own.
    PIP_FIND_LINKS="$(realpath "${2:?--wheels needs a folder}")"
    export PIP_NO_INDEX=1 PIP_FIND_LINKS
    shift 2
fi
cd "$(dirname "$0")/.."
make .venv/.installed-test
exec .venv/bin/python -m benchmarks.gpu_check "$@"
