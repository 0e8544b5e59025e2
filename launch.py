"""Starts a server: reads the flags, resolves the configuration once, and supervises the processes until they end."""

import contextlib
import dataclasses
import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

import setproctitle

from model_runner.attention.support import flashinfer_refusal
from model_runner.kernels.library import build_refusal
from model_runner.kernels.support import kernels_refusal
from model_runner.models.catalogue import find_architecture, list_models
from protocol.control import Role
from runtime.announcements import Announcer
from runtime.arguments import parse_arguments
from runtime.engine_config import EngineConfig, ModelDescription
from runtime.environment import Environment, read_environment
from runtime.hardware import Hardware, read_hardware
from runtime.listening import Listener, open_listener
from runtime.logging_setup import set_up_logging
from runtime.model_description import describe_model, text_config
from runtime.model_source import resolve_model_path, weight_bytes
from runtime.nodes import place_node
from runtime.resolve import Given, resolve
from runtime.run_directory import RunDirectory
from runtime.server_args import ServerArgs
from runtime.signals import Signals
from runtime.start_error import StartError
from runtime.status_board import SUPERVISOR_SLOT, StatusBoard
from runtime.supervisor import Supervisor
from runtime.topology import MODULES, seats_of
from runtime.version import VERSION


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 after SIGINT or SIGTERM, 1 with one clear sentence if the server can't start or go on."""
    given = sys.argv[1:] if argv is None else argv
    return in_words(lambda: serve(parse_arguments(given, VERSION, list_models())))


def in_words(work: Callable[[], int]) -> int:
    """Runs it; a StartError becomes its sentence on stderr and status 1."""
    # Until the supervisor handles signals itself, SIGTERM unwinds like Ctrl-C does, so that nothing is left half done.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return work()
    except StartError as error:
        print(f"candor: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130


def serve(
    args: ServerArgs,
    configure: Callable[[ServerArgs, Environment, Path], EngineConfig] | None = None,
    modules: Mapping[Role, str] = MODULES,
) -> int:
    """Takes the address first: a port in use must be told before anything slow. `configure` makes the configuration
    (default: `make_config`), `modules` names what each role runs."""
    set_up_logging("supervisor", args.log_level)
    # The title hides the command line, which may hold API keys.
    setproctitle.setproctitle("candor: supervisor")
    environment = read_environment()
    args = place_node(args, environment)
    with contextlib.ExitStack() as stack:
        listener = None
        if args.node_rank == 0:
            listener = stack.enter_context(contextlib.closing(open_listener(args)))
            args = dataclasses.replace(args, port=listener.port)
        run_directory = stack.enter_context(contextlib.closing(RunDirectory(environment.run_folder)))
        config = (configure or make_config)(args, environment, run_directory.path)
        return supervise(config, listener, modules)


def make_config(args: ServerArgs, environment: Environment, run_dir: Path) -> EngineConfig:
    """Finds the model (fetching it if need be) and decides everything."""
    path = resolve_model_path(
        args.model_path, environment.cache_folder, revision=args.revision, trust_remote_code=args.trust_remote_code
    )
    model = describe_model(args, path, environment.cache_folder)
    hardware = read_hardware(cuda_visible_devices=environment.cuda_visible_devices)
    given = Given(
        args,
        model,
        hardware,
        weight_bytes(path),
        environment.omp_threads,
        _kernels_refusal(args, model, hardware, environment),
        native=find_architecture(model.architecture) is not None,
        flashinfer_refusal=flashinfer_refusal(model.architecture, text_config(model.config)),
    )
    return _with_parsers(resolve(given, run_dir=str(run_dir), version=VERSION), model)


def _kernels_refusal(
    args: ServerArgs, model: ModelDescription, hardware: Hardware, environment: Environment
) -> str | None:
    """Kernels that will be wanted are compiled now: if they can't be, or fail their check, plain torch serves."""
    refusal = kernels_refusal(model.architecture, text_config(model.config), hardware.processor_flags)
    wanted = args.attention_backend in ("auto", "cpu") and (args.device == "cpu" or hardware.gpus == 0)
    return build_refusal(environment.cache_folder / "kernels") if wanted and refusal is None else refusal


def _with_parsers(config: EngineConfig, model: ModelDescription) -> EngineConfig:
    """With names in place of `auto` parsers."""
    args = config.args
    if args.tool_call_parser is None and args.reasoning_parser is None:
        return config
    # Imported here alone: formats and templates are a third of what this process imports, before any other can start.
    deployment = importlib.import_module("function_call.deployment")
    templates = importlib.import_module("tokenizer_manager.template_choice")
    decided: EngineConfig = deployment.decide_parsers(config, templates.chosen_template_text(args.chat_template, model))
    return decided


def supervise(config: EngineConfig, listener: Listener | None, modules: Mapping[Role, str]) -> int:
    """`listener` is None on a node that serves no HTTP."""
    slots = 1 + max(seat.board_slot for seat in seats_of(config))
    board = StatusBoard.create(Path(config.run_dir) / "board", slots)
    board.slot(SUPERVISOR_SLOT).claim("supervisor", 0, 1, os.getpid())
    with Signals() as signals:
        announcer = Announcer(config, listener.url if listener else "")
        listen_fd = listener.socket.fileno() if listener else -1
        return Supervisor(config, board, listen_fd, announcer, signals, modules).run()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
