"""Logging of one process: to stderr, one line per message, with the name of the process in it."""

import logging
import sys
from typing import TextIO

_LINE_BREAKS = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if code != 0x09}
_LINE_BREAKS |= {0x0A: "\\n", 0x0D: "\\r", 0x2028: "\\u2028", 0x2029: "\\u2029"}


class LineFormatter(logging.Formatter):
    """Control characters of a message are escaped, so nothing that a client sent can forge a log line or drive a
    terminal. Tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.translate(_LINE_BREAKS)
        return super().formatMessage(record)


def set_up_logging(process_name: str, level: str, stream: TextIO | None = None) -> None:
    """Replaces the root logger's handlers. `level` is a --log-level."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(f"%(asctime)s %(levelname)s [{process_name}] %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Below warning these tell nothing about Candor.
    for name in ("httpx", "httpcore", "urllib3", "asyncio", "filelock", "huggingface_hub"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
