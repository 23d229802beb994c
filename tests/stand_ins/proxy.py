"""A proxy between two programs that counts what passes, and can be slow."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Self


class Proxy:
    """Hands connections on to an endpoint, one thread for each direction.

    Attributes:
        n_sent: bytes that clients sent.
        n_received: bytes that they got.
    """

    def __init__(self, endpoint: str, delay_s: float = 0.0, host: str = "127.0.0.1") -> None:
        name, _, port = endpoint.partition(":")
        self._target, self._delay_s = (name, int(port)), delay_s
        self._listener = socket.create_server((host, 0))
        self._sockets: list[socket.socket] = []
        self._pumps: list[threading.Thread] = []
        self.n_sent = self.n_received = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:  # nobody is there: the client hears of it by the end of its connection
                    _cut(client)
                    continue
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [client, server]
                for source, sink, counter in ((client, server, "n_sent"), (server, client, "n_received")):
                    pump = threading.Thread(target=self._pump, args=(source, sink, counter), daemon=True)
                    pump.start()
                    self._pumps.append(pump)

    def _pump(self, source: socket.socket, sink: socket.socket, counter: str) -> None:
        try:
            while block := source.recv(1 << 20):
                time.sleep(self._delay_s)
                setattr(self, counter, getattr(self, counter) + len(block))
                sink.sendall(block)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one end is gone, and who waits at the other is to know
            _cut(source)
            _cut(sink)

    def close(self) -> None:
        """Let connections end by themselves, and cut those that do not."""
        self._listener.close()
        end = time.monotonic() + 10
        for pump in self._pumps:
            pump.join(max(0.0, end - time.monotonic()))
        for one in self._sockets:
            _cut(one)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
