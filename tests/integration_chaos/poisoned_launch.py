"""launch.py with a scheduler that a certain token kills, as a fault in a kernel or a driver would."""

import sys

import launch
from runtime.arguments import parse_arguments
from runtime.topology import MODULES

if __name__ == "__main__":
    args = parse_arguments(sys.argv[1:], "0")
    sys.exit(launch.in_words(lambda: launch.serve(args, modules={**MODULES, "scheduler": "poisoned_scheduler"})))
