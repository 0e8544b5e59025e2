"""A process for the supervisor's tests: says Ready, writes down what it is told, and misbehaves as its plan says.

The plan is `config.model.config["fake"]`, by process name: "fail" (a StartError), "vanish" (status 3 before Ready),
"stick" (ready, then never beats again), "deaf" (ignores Shutdown), "busy" (drains only once the file `idle` is there),
"raise" (an exception).
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import TextIO

import msgspec

from protocol.control import Drain, Drained, PeerDown, PeerUp, Progress, Ready, Shutdown
from runtime.channels import Links
from runtime.engine_config import EngineConfig, ProcessSpec
from runtime.process import peer_of, run_process
from runtime.start_error import StartError
from runtime.status_board import SlotWriter, StatusBoard


def main(config: EngineConfig, spec: ProcessSpec) -> int:
    folder = Path(config.model.config["folder"])
    plan = config.model.config["fake"].get(f"{spec.role} {spec.index}", "")
    links = Links(spec)
    with (folder / f"{spec.role}-{spec.index}-{spec.incarnation}.jsonl").open("a", buffering=1) as log:
        log.write(json.dumps({"type": "environment", "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]}) + "\n")
        if plan == "fail":
            raise StartError("the weights do not fit")
        if plan == "raise":
            raise RuntimeError("no such layer")
        if plan == "vanish":
            os._exit(3)
        slot = StatusBoard.open(spec.board_path).slot(spec.board_slot)
        slot.update(state="ready", steps=4)
        slot.write_plan(msgspec.msgpack.encode({"step": 5, "requests": ["0-abc"]}))
        links.report(Progress(peer_of(spec), "loading", 1, 1))
        links.report(Ready(peer_of(spec), os.getpid(), {"template": "chatml", "template_source": "checkpoint"}))
        if plan == "stick" and spec.incarnation == 1:
            time.sleep(3600)
        return loop(links, spec, slot, plan, folder, log)


def loop(links: Links, spec: ProcessSpec, slot: SlotWriter, plan: str, folder: Path, log: TextIO) -> int:
    draining = False
    while True:
        slot.beat()
        links.wait(0.02)
        for message in links.control.drain():
            log.write(json.dumps(msgspec.to_builtins(message)) + "\n")
            if isinstance(message, PeerUp | PeerDown):
                links.apply_peer(message)
            elif isinstance(message, Drain):
                draining = True
            elif isinstance(message, Shutdown) and plan != "deaf":
                links.close()
                return 0
        if draining and (plan != "busy" or (folder / "idle").exists()):
            links.report(Drained(peer_of(spec)))
            draining = False


if __name__ == "__main__":
    sys.exit(run_process(main))
