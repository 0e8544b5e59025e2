"""The tokenizer manager's process: builds the parts, joins them to the links, and runs the event loop."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from protocol.control import Drain, Drained, PeerDown, PeerUp, Ready, Shutdown
from protocol.links import ProcessControl
from runtime.channels import Links, pump
from runtime.engine_config import EngineConfig, ModelDescription, ProcessSpec
from runtime.process import joined, peer_of, run_async, run_process
from runtime.status_board import StatusBoard
from runtime.tokenizer_loading import load_tokenizer
from tokenizer_manager.chat_rendering import ChatRenderer, RenderingPolicy
from tokenizer_manager.manager import ManagerSettings, TokenizerManager
from tokenizer_manager.preparation import RequestPreparer
from tokenizer_manager.routing import ReplicaLoad, Router
from tokenizer_manager.template_choice import choose_templates
from tokenizer_manager.template_environment import make_environment
from tokenizer_manager.tokenization import TextTokenizer

logger = logging.getLogger(__name__)

_TICK_S = 0.25
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def main(config: EngineConfig, spec: ProcessSpec) -> int:
    return run_async(_serve(config, spec))


async def _serve(config: EngineConfig, spec: ProcessSpec) -> int:
    executor = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1), thread_name_prefix="prepare")
    try:
        with joined(spec) as (links, board):
            tokenizer = TextTokenizer(load_tokenizer(config.model.tokenizer_file), config.model.bos_token_id)
            renderer = make_renderer(config, tokenizer)
            templates = renderer.templates
            info: dict[str, Any] = {
                "template": templates.name,
                "template_source": templates.description,
                "template_reads": templates.reads,
            }
            loop = asyncio.get_running_loop()

            def call_soon(action: Callable[[], None]) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
                    loop.call_soon_threadsafe(action)

            manager = TokenizerManager(
                RequestPreparer(config, tokenizer, renderer),
                # With one replica there is nothing to remember for a choice.
                Router(config.args.load_balance if config.args.dp_size > 1 else "round_robin", load_reader(board)),
                links.outbox,
                executor,
                call_soon,
                ManagerSettings(
                    index=spec.index,
                    replicas=config.args.dp_size,
                    max_queued_requests=config.args.max_queued_requests,
                    evicts_low_priority=config.args.evict_low_priority,
                    description={**info, "load_balance": config.args.load_balance},
                ),
            )
            board.slot(spec.board_slot).update(state="ready")
            links.report(Ready(peer_of(spec), os.getpid(), info))
            await _run(manager, links, board, spec)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
    return 0


async def _run(manager: TokenizerManager, links: Links, board: StatusBoard, spec: ProcessSpec) -> None:
    """Until Shutdown. After Drain the process goes on: what reaches it was admitted at the edge."""
    slot = board.slot(spec.board_slot)
    over = asyncio.Event()
    draining = asyncio.Event()

    def on_control(message: ProcessControl) -> None:
        if isinstance(message, PeerUp):
            links.apply_peer(message)
            manager.peer_up(message)
        elif isinstance(message, PeerDown):
            links.apply_peer(message)
            manager.peer_down(message)
        elif isinstance(message, Drain):
            slot.update(state="draining")
            draining.set()
        elif isinstance(message, Shutdown):
            over.set()

    async def tick() -> None:
        drained = False
        while True:
            slot.beat()
            manager.tick()
            if draining.is_set() and manager.idle and not drained:
                drained = True
                links.report(Drained(peer_of(spec)))
            await asyncio.sleep(_TICK_S)

    tasks = [
        asyncio.create_task(pump(links.control, on_control)),
        asyncio.create_task(pump(links.inbox, manager.handle)),
        asyncio.create_task(tick()),
    ]
    ending = asyncio.create_task(over.wait())
    done, _ = await asyncio.wait([*tasks, ending], return_when=asyncio.FIRST_COMPLETED)
    for task in (*tasks, ending):
        task.cancel()
    await asyncio.gather(*tasks, ending, return_exceptions=True)
    for task in done:
        if task is not ending:
            await task  # a loop ends only by an error: it is raised here
    slot.update(state="stopped")


def make_renderer(config: EngineConfig, tokenizer: TextTokenizer) -> ChatRenderer:
    """The renderer with the templates that --chat-template and the model decide on; StartError if there are none such."""
    templates = choose_templates(config.args.chat_template, config.model, make_environment())
    logger.info("chat template: %s", templates.description)
    policy = RenderingPolicy(config.args.allow_special_tokens_in_content, config.args.trust_request_chat_template)
    return ChatRenderer(templates, tokenizer, special_tokens(config.model), policy)


def special_tokens(model: ModelDescription) -> dict[str, str]:
    """The variables that hold a tokenizer's special tokens in templates, with their text."""
    found = {}
    for name in _SPECIAL_NAMES:
        value = model.tokenizer_config.get(name)
        if isinstance(value, str):
            found[name] = value
    return found


def load_reader(board: StatusBoard) -> Callable[[], dict[int, ReplicaLoad]]:
    """The newest load of each scheduler replica, read off the status board."""

    def read() -> dict[int, ReplicaLoad]:
        return {
            status.index: ReplicaLoad(status.waiting, status.running, status.steps)
            for status in board.read_all()
            if status.role == "scheduler"
        }

    return read


if __name__ == "__main__":
    sys.exit(run_process(main))
