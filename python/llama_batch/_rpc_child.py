"""A worker's child process: it serves, and ends with whoever started it.

llama.cpp's server never returns and cannot be stopped, so it has a process of its own. The first line of standard input
says what to serve; that it stays open says that the parent lives. Lines of standard output that begin with a mark tell
the parent how it goes; all others are llama.cpp's.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

MARK = "llama-batch-rpc:"
_POLL_S = 0.02
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""A machine that does not answer for a minute is gone. Unit: seconds; and tries."""


def _tell(**what: Any) -> None:
    os.write(1, f"{MARK}{json.dumps(what)}\n".encode())


def _live_with_parent() -> None:
    """End when the parent closes its end of the pipe, or the system does that for it."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def _notice_lost_clients(listener: socket.socket) -> None:
    """Have the system end connections whose client's machine is gone: a server waits for its one client for ever.

    The sockets of clients take this over from the one that listens.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if option := getattr(socket, name, None):
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


def _listens(host: str, port: int) -> bool:
    """Whether one of this process's sockets listens there."""
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names of descriptors, not paths
        try:
            fd = os.dup(int(name))
        except OSError:  # the one that the list was read from
            continue
        try:
            found = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            continue
        with found:
            is_there = found.family == socket.AF_INET and found.getsockname() == (host, port)
            if is_there and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                _notice_lost_clients(found)
                return True
    return False


def _watch(host: str, port: int) -> None:
    """Tell when the server listens. Nobody connects for that: a server has one client, and counts them."""
    while not _listens(host, port):
        time.sleep(_POLL_S)
    _tell(listening=True)


def main() -> None:
    """Serve until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
    from llama_batch import _core
    from llama_batch.errors import RpcError

    _core.die_with_parent()
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return
        line += byte
    asked = json.loads(line)
    threading.Thread(target=_live_with_parent, daemon=True).start()

    def tell(devices: list[tuple[str, str, int, int]]) -> None:
        _tell(devices=devices)
        threading.Thread(target=_watch, args=(asked["host"], asked["port"]), daemon=True).start()

    try:
        endpoint = f"{asked['host']}:{asked['port']}"
        _core.rpc_serve(endpoint, asked["cache_dir"], asked["n_threads"], asked["devices"], tell)
    except RpcError as error:
        _tell(failed=str(error), reason=error.reason)
    # Threads of the server may be at work: nothing is torn down around them.
    sys.stdout.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
