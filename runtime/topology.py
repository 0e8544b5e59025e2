"""Which processes a server has, what each runs, and who hears of whom."""

from dataclasses import dataclass
from pathlib import Path

from protocol.control import Role
from runtime.engine_config import EngineConfig, ProcessSpec
from runtime.nodes import own_address
from runtime.status_board import SUPERVISOR_SLOT

MODULES: dict[Role, str] = {
    "http": "http_frontend.process",
    "tokenizer": "tokenizer_manager.process",
    "scheduler": "scheduler.process",
    "detokenizer": "detokenizer.process",
    "rank": "model_runner.worker",
}


@dataclass(frozen=True)
class Seat:
    """A place for a process, kept over restarts. Seats of one `group` start and fall together."""

    role: Role
    index: int
    board_slot: int
    group: str
    replica: int = 0
    rank: int = 0

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"


def seats_of(config: EngineConfig) -> list[Seat]:
    """All seats of this node, in the order in which they are started: what takes longest first.

    Rank r > 0 of replica d is the process (rank, d * tp_size + r); rank 0 lives in the scheduler. Of several nodes each
    has its share of the ranks, and node 0 everything else.
    """
    args = config.args
    places: list[tuple[Role, int, str, int, int]] = []
    on_node = args.tp_size // args.nnodes
    first = args.node_rank * on_node
    for replica in range(args.dp_size):
        for rank in range(first, first + on_node):
            role: Role = "rank" if rank else "scheduler"
            index = replica * args.tp_size + rank if rank else replica
            places.append((role, index, f"replica {replica}", replica, rank))
    counts: tuple[tuple[Role, int], ...] = (
        ("tokenizer", args.tokenizer_workers),
        ("detokenizer", args.detokenizer_workers),
        ("http", args.http_workers),
    )
    if args.node_rank:
        counts = ()
    places += [(role, index, f"{role} {index}", 0, 0) for role, count in counts for index in range(count)]
    return [
        Seat(role, index, board_slot, group, replica, rank)
        for board_slot, (role, index, group, replica, rank) in enumerate(places, start=SUPERVISOR_SLOT + 1)
    ]


def make_spec(
    seat: Seat, incarnation: int, run_dir: Path, listen_fd: int, dist_init_addr: str | None = None
) -> ProcessSpec:
    """The identity of one incarnation; its endpoints are new, so nothing meant for a former one can reach it. With
    `dist_init_addr` plans come to a rank from another host: it listens on any free port of its own."""
    stem = f"ipc://{run_dir}/{seat.role}-{seat.index}-{incarnation}"
    return ProcessSpec(
        role=seat.role,
        index=seat.index,
        incarnation=incarnation,
        endpoint=f"tcp://{own_address(dist_init_addr)}:*" if dist_init_addr and seat.rank else f"{stem}.in",
        control_endpoint=f"{stem}.control",
        supervisor_endpoint=supervisor_endpoint(run_dir),
        board_path=str(run_dir / "board"),
        board_slot=seat.board_slot,
        listen_fd=listen_fd if seat.role == "http" else None,
        rank=seat.rank,
    )


def supervisor_endpoint(run_dir: Path) -> str:
    return f"ipc://{run_dir}/supervisor.in"


def rendezvous_file(run_dir: str, replica: int, incarnation: int) -> Path:
    """Where the ranks of one incarnation of a replica meet; nobody else uses the name."""
    return Path(run_dir) / f"rendezvous-{replica}-{incarnation}"


def hears_of(listener: Seat, other: Seat) -> bool:
    """Everybody hears of everybody, save that a rank and its scheduler only concern each other."""
    if listener == other:
        return False
    if listener.role == "rank":
        return other.role == "scheduler" and other.replica == listener.replica
    if other.role == "rank":
        return listener.role == "scheduler" and listener.replica == other.replica
    return True


def thread_environment(role: Role, threads: int) -> dict[str, str]:
    """What the libraries read when they are imported: compute threads for those that compute, one for the others, whose
    waiting threads must not spin on the cores that the engine computes on."""
    count = str(threads) if role in ("scheduler", "rank") else "1"
    environment = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), count)
    environment["TOKENIZERS_PARALLELISM"] = "false"
    if role not in ("scheduler", "rank"):
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
    return environment
