"""Which of several hosts this is: by flags, by torchrun's variables, or by those of a Kubernetes LeaderWorkerSet."""

import dataclasses
import socket

from runtime.environment import Environment
from runtime.server_args import ServerArgs
from runtime.start_error import StartError

DEFAULT_PORT = 29600


def place_node(args: ServerArgs, environment: Environment) -> ServerArgs:
    """The flags with `nnodes`, `node_rank` and `dist_init_addr` filled in; StartError where they can't hold together.

    Flags win over variables; variables count only where their launcher has left its own mark.
    """
    if args.nnodes == 1:
        args = _from_launcher(args, environment)
    if args.nnodes == 1:
        if args.node_rank or args.dist_init_addr is not None:
            raise StartError("--node-rank and --dist-init-addr say nothing without --nnodes")
        return args
    if args.node_rank >= args.nnodes:
        raise StartError(f"--node-rank {args.node_rank} must be below --nnodes {args.nnodes}: nodes are counted from 0")
    if args.dist_init_addr is None:
        raise StartError(f"--nnodes {args.nnodes} needs --dist-init-addr HOST:PORT, an address of node 0")
    if args.dp_size > 1:
        raise StartError("--dp-size goes with one node; start a server per replica and a router before them")
    if args.tp_size % args.nnodes:
        raise StartError(f"--tp-size {args.tp_size} can't be dealt evenly over {args.nnodes} nodes")
    host, port = host_and_port(args.dist_init_addr)
    return dataclasses.replace(args, dist_init_addr=f"{host}:{port}")


def _from_launcher(args: ServerArgs, environment: Environment) -> ServerArgs:
    if environment.lws_leader_address is not None and environment.lws_group_size > 1:
        address = environment.lws_leader_address
        nnodes, node_rank = environment.lws_group_size, environment.lws_worker_index
    elif environment.torchelastic_run_id is not None and environment.world_size > 1:
        if environment.local_world_size != 1:
            raise StartError("torchrun must start one Candor per node (--nproc-per-node 1): it starts its own ranks")
        # The port itself is where torchrun's own agents meet.
        address = f"{environment.master_addr}:{environment.master_port + 1}"
        nnodes, node_rank = environment.world_size, environment.rank
    else:
        return args
    return dataclasses.replace(args, nnodes=nnodes, node_rank=node_rank, dist_init_addr=args.dist_init_addr or address)


def host_and_port(address: str) -> tuple[str, int]:
    """HOST, HOST:PORT or [IPV6]:PORT; the port is DEFAULT_PORT where none is given."""
    host, colon, port = address.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port = address, str(DEFAULT_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise StartError(f"--dist-init-addr {address!r} is not HOST:PORT")
    return host, int(port)


def own_address(address: str) -> str:
    """The address of this host by which the host of `address` reaches it."""
    host, port = host_and_port(address)
    try:
        family, kind, _, _, target = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # a datagram socket sends nothing by connecting
            found: str = probe.getsockname()[0]
    except OSError as error:
        raise StartError(f"--dist-init-addr {address}: no way to that host: {error}") from None
    return f"[{found}]" if ":" in found else found
