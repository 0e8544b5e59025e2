"""launch.py with fake processes: `CONFIG_FILE` holds an EngineConfig without a run directory."""

import sys
from pathlib import Path

import msgspec

import launch
from runtime.engine_config import EngineConfig
from runtime.environment import Environment
from runtime.server_args import ServerArgs
from runtime.topology import MODULES

FAKES = dict.fromkeys(MODULES, "fake_child")


def make_config(args: ServerArgs, environment: Environment, run_dir: Path) -> EngineConfig:
    config = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=EngineConfig)
    return msgspec.structs.replace(config, args=args, run_dir=str(run_dir))


if __name__ == "__main__":
    config = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=EngineConfig)
    sys.exit(launch.in_words(lambda: launch.serve(config.args, make_config, FAKES)))
