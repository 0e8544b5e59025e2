"""What the user sees of a start: decisions, progress bars, the template in force, and the line that says it is ready."""

import contextlib
import json
import sys
from typing import Any, TextIO

from tqdm import tqdm

from protocol.control import Progress
from runtime.engine_config import EngineConfig


class Announcer:
    """Writes to stdout (progress bars to stderr), so that logs and announcements can be told apart."""

    def __init__(self, config: EngineConfig, url: str, output: TextIO | None = None) -> None:
        self._config = config
        self._url = url
        self._output = output or sys.stdout
        self._bars: dict[tuple[str, int, str], Any] = {}

    def decisions(self) -> None:
        for what, why in self._config.decisions:
            self._say(f"  {what}  ({why})")

    def progress(self, message: Progress) -> None:
        with contextlib.suppress(OSError):
            self._show(message)

    def _show(self, message: Progress) -> None:
        if message.peer.role == "rank" and not self._config.args.node_rank:
            return  # it loads as much as its scheduler, at the same time
        key = (message.peer.role, message.peer.index, message.what)
        bar = self._bars.get(key)
        if bar is None:
            bar = tqdm(total=message.total, desc=message.what, unit_scale=True, leave=True)
            self._bars[key] = bar
        bar.total = message.total
        bar.update(message.done - bar.n)
        if message.done >= message.total:
            bar.close()

    def end_progress(self) -> None:
        with contextlib.suppress(OSError):
            for bar in self._bars.values():
                bar.close()
        self._bars.clear()

    def scheduler_ready(self, info: dict[str, Any]) -> None:
        """What was only known once the weights were loaded."""
        if self._config.kv_tokens is None and "kv_tokens" in info:
            self._say(f"  kv_tokens = {info['kv_tokens']}  (measured)")

    def template(self, info: dict[str, Any]) -> None:
        """From a tokenizer manager's Ready: which chat template is in force, and where it came from."""
        if "template" in info:
            self._say(f"  chat template = {info['template']}  ({info.get('template_source') or 'no source given'})")

    def ready(self, seconds: float) -> None:
        """The last line of a start, and something to try."""
        if self._config.args.node_rank:
            self._say(
                f"Node {self._config.args.node_rank} of {self._config.args.nnodes} is ready (after {seconds:.1f} s)."
            )
            return
        name = self._config.model.served_names[0]
        body = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hello!"}]}, ensure_ascii=True)
        args = self._config.args
        key = " -H 'Authorization: Bearer YOUR_API_KEY'" if args.api_key else ""
        target = f"--unix-socket {args.uds} http://localhost" if args.uds else self._url
        quoted = body.replace("'", "'\\''")
        self._say(f"Candor is ready: {name} at {self._url} (after {seconds:.1f} s). Try:")
        self._say(f"  curl {target}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{quoted}'")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads, or the disk is full: no reason not to serve
            print(line, file=self._output, flush=True)
