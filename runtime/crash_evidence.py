"""What a dead process leaves for whoever has to find out why: one folder per death in --crash-dump-folder.

Holds no text of any request: the plan on the board names requests and counts tokens only. What the requests were, the
HTTP workers add, for only they know.
"""

import json
import logging
import time
from pathlib import Path
from typing import Any

import msgspec

from runtime.children import Child
from runtime.engine_config import EngineConfig
from runtime.status_board import StatusBoard

logger = logging.getLogger(__name__)


def keep_evidence(config: EngineConfig, board: StatusBoard, child: Child, reason: str) -> str:
    """Writes reason.txt, board.json, and where there are some stacks.txt and plan.json; returns the folder, "" if there is
    none. Never fails: a full disk must not keep the process from being restarted."""
    if config.args.crash_dump_folder is None:
        return ""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    name = f"{stamp}-{child.seat.role}-{child.seat.index}-{child.spec.incarnation}"
    folder = Path(config.args.crash_dump_folder).expanduser() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "reason.txt").write_text(reason + "\n")
        statuses = [msgspec.to_builtins(status) for status in board.read_all()]
        (folder / "board.json").write_text(json.dumps(statuses, indent=1))
        if stacks := child.stacks(config.run_dir):
            (folder / "stacks.txt").write_text(stacks)
        if plan := board.read_plan(child.seat.board_slot):
            (folder / "plan.json").write_text(json.dumps(_plain(plan), indent=1))
    except OSError as error:
        logger.warning("the evidence of this death can't be kept in %s: %s", folder, error)
        return ""
    logger.error("evidence of this death is in %s", folder)
    return str(folder)


def _plain(plan: bytes) -> Any:
    """The plan as JSON can hold it; what is no MessagePack is told by its length."""
    try:
        return msgspec.to_builtins(msgspec.msgpack.decode(plan), str_keys=True)
    except msgspec.DecodeError:
        return f"{len(plan)} bytes that are no MessagePack"
