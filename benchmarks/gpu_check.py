"""One command for the first hour on a GPU: what is here, whether it computes rightly, and how fast.

    python -m benchmarks.gpu_check [--skip-speed]     (benchmarks/gpu_check.sh installs what it needs before)

Ends with status 1 at the first part that fails. docs/gpu.md says what each part shows.
"""

import argparse
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "flashinfer-python", "sglang-kernel", "xgrammar", "transformers")


def show_environment() -> bool:
    """The device and the libraries; False if there is no GPU."""
    for package in PACKAGES:
        try:
            print(f"  {package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"  {package} is not installed")
    if not torch.cuda.is_available():
        print("  no GPU that this torch can use")
        return False
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        print(
            f"  GPU {index}: {properties.name}, {properties.total_memory >> 30} GiB, "
            f"compute capability {properties.major}.{properties.minor}"
        )
    return True


def run(title: str, *command: str) -> bool:
    print(f"\n== {title}: {' '.join(command)}", flush=True)
    status = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode
    print(f"== {title}: {'passed' if status == 0 else f'FAILED (status {status})'}", flush=True)
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip-speed", action="store_true", help="correctness alone")
    options = parser.parse_args()
    print("== environment")
    if not show_environment():
        return 1
    correct = (
        ("single kernels", "pytest", "-q", "-x", "tests/gpu/test_parts.py", "tests/gpu/test_attention.py"),
        ("quantised checkpoints", "pytest", "-q", "-x", "tests/gpu/test_checkpoints.py"),
        ("whole steps", "pytest", "-q", "-x", "tests/gpu/test_steps.py"),
        ("ranks", "pytest", "-q", "-x", "tests/gpu/test_ranks.py", "tests/integration_parallel/test_ranks.py"),
    )
    speed = (
        ("speed", "benchmarks.gpu_speed"),
        ("speed without graphs", "benchmarks.gpu_speed", "--disable-cuda-graph", "--batches", "1", "32"),
        ("speed in fp8", "benchmarks.gpu_speed", "--quantization", "fp8"),
    )
    parts = correct if options.skip_speed else correct + speed
    return 0 if all(run(*part) for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
