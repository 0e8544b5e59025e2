"""A child process that renders one template which came with a request: Jinja can loop for ever, a process can be killed.

Reads a MessagePack map (source, variables, now_s) from standard input, writes {"text"} or {"error"} to standard output.
"""

import resource
import subprocess
import sys
from typing import Any

import msgspec

from runtime.environment import child_environment
from tokenizer_manager.template_environment import (
    TemplateFailure,
    compile_template,
    make_environment,
    render_template,
)

TIME_LIMIT_S = 5.0
CPU_SECONDS = 30
MEMORY_BYTES = 1 << 30
TEXT_CHARACTERS = 16 << 20


def render_in_child(source: str, variables: dict[str, Any], now_s: float, limit_s: float = TIME_LIMIT_S) -> str:
    """The text of an untrusted template; TemplateFailure if it fails, loops or eats memory. Blocks: call it in a thread."""
    order = msgspec.msgpack.encode({"source": source, "variables": variables, "now_s": now_s})
    command = [sys.executable, "-m", "tokenizer_manager.template_child"]
    try:
        done = subprocess.run(
            command, input=order, capture_output=True, timeout=limit_s, check=False, env=child_environment()
        )
    except subprocess.TimeoutExpired as error:
        raise TemplateFailure(f"the template ran for more than {limit_s:g} seconds") from error
    if done.returncode != 0:
        raise TemplateFailure("the template could not be run within its limits of memory and time")
    answer = msgspec.msgpack.decode(done.stdout)
    if "error" in answer:
        raise TemplateFailure(answer["error"])
    return str(answer["text"])


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # For the case that the parent is gone and nobody watches the clock.
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    order = msgspec.msgpack.decode(sys.stdin.buffer.read())
    try:
        template = compile_template(make_environment(), order["source"])
        text = render_template(template, order["variables"], order["now_s"])
        if len(text) > TEXT_CHARACTERS:
            raise TemplateFailure(f"the template wrote more than {TEXT_CHARACTERS} characters")
        answer = {"text": text}
    except TemplateFailure as error:
        answer = {"error": str(error)}
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
