"""The listening socket, opened by the supervisor before anything slow and shared by all HTTP workers."""

import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from runtime.server_args import ServerArgs
from runtime.start_error import StartError

_BACKLOG = 2048


@dataclass
class Listener:
    """`url` is how a client on this host reaches it; `port` is the real one where --port 0 asked for any."""

    socket: socket.socket
    port: int
    url: str
    uds: Path | None = None

    def close(self) -> None:
        self.socket.close()
        if self.uds is not None:
            self.uds.unlink(missing_ok=True)


def open_listener(args: ServerArgs) -> Listener:
    """Binds and listens, so that the address is ours from now on; StartError if it can't be had."""
    if args.uds is not None:
        return _open_unix(Path(args.uds))
    last_error: OSError | None = None
    for family, address in _addresses(args.host, args.port):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            # A port whose former server is gone but whose connections linger in TIME_WAIT can be had again at once.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and args.host == "::":
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            last_error = error
            continue
        port: int = listener.getsockname()[1]
        scheme = "https" if args.ssl_certfile else "http"
        return Listener(listener, port, f"{scheme}://{_client_host(args.host)}:{port}")
    raise StartError(_reason(args, last_error))


def _addresses(host: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise StartError(f"--host {host} is not an address of this machine: {error}") from None
    # IPv4 first: most clients take "localhost" for 127.0.0.1.
    return sorted(((entry[0], entry[4]) for entry in found), key=lambda entry: entry[0] != socket.AF_INET)


def _client_host(host: str) -> str:
    if host in ("", "0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _reason(args: ServerArgs, error: OSError | None) -> str:
    if error is not None and error.errno == errno.EADDRINUSE:
        return f"port {args.port} on {args.host} is in use; stop what listens there or choose another --port"
    if error is not None and error.errno == errno.EACCES:
        return f"port {args.port} may not be used by this user; choose a --port above 1023"
    return f"can't listen on {args.host} port {args.port}: {error}"


def _open_unix(path: Path) -> Listener:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            if _answers(path):
                raise StartError(f"the unix socket {path} is in use")
            path.unlink()
        listener.bind(os.fspath(path))
        listener.listen(_BACKLOG)
    except StartError:
        listener.close()
        raise
    except OSError as error:
        listener.close()
        raise StartError(f"can't listen on the unix socket {path}: {error}") from None
    return Listener(listener, 0, f"http+unix://{path}", path)


def _answers(path: Path) -> bool:
    """False for a socket file that a server which was killed has left."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
        return True
