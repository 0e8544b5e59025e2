"""launch.py with a role (POISONED_ROLE) that a certain token kills, as a fault in a kernel or a driver would."""

import os
import sys
from typing import Any

import launch
from runtime.arguments import parse_arguments
from runtime.topology import MODULES

if __name__ == "__main__":
    role = os.environ["POISONED_ROLE"]
    args = parse_arguments(sys.argv[1:], "0")
    modules: Any = {**MODULES, role: f"poisoned_{role}"}
    sys.exit(launch.in_words(lambda: launch.serve(args, modules=modules)))
