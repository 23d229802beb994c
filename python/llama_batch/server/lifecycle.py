"""From the first connection to the last: uvicorn, signals, and the end that waits for who is there."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

try:
    import uvicorn

    from llama_batch.server.protocol import Connections, LimitedProtocol, allow_files
except ImportError as error:
    raise ImportError("the server needs its extra: pip install 'llama-batch[server]'") from error

from llama_batch.errors import LlamaBatchError
from llama_batch.server.app import build
from llama_batch.server.logs import tell

if TYPE_CHECKING:
    import socket
    from types import FrameType

    from llama_batch.engine import Engine
    from llama_batch.server.settings import Settings

_LAST_WORDS_S = 3
"""How long what is under way may take at the end to be sent; clients that never send their request end with it too."""

_CLOSE_S = 60.0
"""How long the engine may take to store what is cached."""

_KEEP_ALIVE_S = 75
_BACKLOG = 2048


class Server(uvicorn.Server):
    """uvicorn, with an end in two steps.

    The first SIGTERM or SIGINT lets those who are in finish: newcomers get 503 and `/health` says so, while the port
    stays open, so that a balancer hears of it. The second one, or the end of `drain_s`, cancels what is left.
    """

    def __init__(self, config: uvicorn.Config, engine: Engine, service: Any, drain_s: float) -> None:
        """Make a server.

        Args:
            config: of uvicorn.
            engine: what is served.
            service: what the application's requests share.
            drain_s: how long requests may take to finish after the first signal. Unit: seconds.
        """
        super().__init__(config)
        self._engine, self._service, self._drain_s = engine, service, drain_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._n_signals = 0
        self._deadline: float | None = None
        self._loading: asyncio.Task[None] | None = None
        self.failure: LlamaBatchError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and wait for the model beside it."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        for listener in self.servers:
            for each in listener.sockets:
                host, port = each.getsockname()[:2]
                tell("listening", url=self._url(host, port), host=host, port=port, model=self._service.model_name)
        self._loading = asyncio.create_task(self._load())

    def _url(self, host: str, port: int) -> str:
        """Where clients find it."""
        return f"http{'s' if self.config.is_ssl else ''}://{f'[{host}]' if ':' in host else host}:{port}"

    async def _load(self) -> None:
        try:
            await self._engine.ready()
            tell("ready", model=self._service.model_name, load_s=self._engine.stats().load_s)
        except LlamaBatchError as error:
            if self._n_signals == 0:  # otherwise it is the end that was wanted
                self.failure = error
            self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Hear a signal. The process goes on to its own end: it does not die of the signal afterwards."""
        del frame
        self._n_signals += 1
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._hear, signal.Signals(sig).name, self._n_signals)

    def _hear(self, name: str, number: int) -> None:
        if number == 1:
            self._service.is_draining = True
            self._deadline = asyncio.get_running_loop().time() + self._drain_s
            tell("draining", signal=name, in_flight=self._service.n_active, at_most_s=self._drain_s)
        elif number == 2:
            self._cancel(f"a second signal, {name}")

    def _cancel(self, why: str) -> None:
        """End what is left: each answer says how far it came."""
        if self._service.n_active:
            tell("cancelling", logging.WARNING, why=why, in_flight=self._service.n_active)
        self._service.is_draining = True
        self._engine.native.close(False, 0.0)
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Look whether it is over, ten times a second."""
        if self._deadline is not None and not self.should_exit:
            if self._service.n_active == 0:
                self.should_exit = True
            elif asyncio.get_running_loop().time() >= self._deadline:
                self._cancel("the time to finish is over")
        return await super().on_tick(counter)


def serve(
    engine: Engine,
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    drain_s: float = 30.0,
    max_connections: int = 1000,
    head_timeout_s: float = 60.0,
    write_timeout_s: float = 60.0,
    **uvicorn_options: Any,
) -> None:
    """Serve an engine until a signal ends it; then close the engine.

    Args:
        engine: the engine; it may still be loading.
        settings: names, keys and limits.
        host: the address to listen at.
        port: the port; 0 takes a free one.
        drain_s: how long requests may take to finish after the first signal. Unit: seconds.
        max_connections: connections at once; more get 503. The process is allowed as many files as that takes.
        head_timeout_s: the time in which a request line and its headers must come. Unit: seconds.
        write_timeout_s: the time in which a client must read some of what was sent to it; then its request is cancelled
            and its connection closed. 0 is no limit. Unit: seconds.
        uvicorn_options: more for `uvicorn.Config`, such as `ssl_keyfile`.

    Raises:
        ModelLoadError: the model could not be loaded.
        OSError: the port is taken, or the address is none of this machine.

    Example:
        >>> serve(Engine("model.gguf"), Settings(), port=8000)
    """
    app = build(engine, settings)
    if (n_files := allow_files(max_connections)) < max_connections:
        tell("few files may be open", logging.WARNING, at_most=n_files, max_connections=max_connections)
    bounds = Connections(max_connections, head_timeout_s, write_timeout_s)
    protocol: Any = partial(LimitedProtocol, bounds=bounds)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        http=protocol,
        timeout_graceful_shutdown=_LAST_WORDS_S,
        ws="none",
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        **uvicorn_options,
    )
    config.load()
    sock = _bound(config)
    server = Server(config, engine, app.state.service, drain_s)
    try:
        server.run(sockets=[sock])
    finally:
        sock.close()
        engine.close(drain=False, timeout=_CLOSE_S)
    if server.failure is not None:
        raise server.failure
    tell("closed")
    sys.stderr.flush()


def _bound(config: uvicorn.Config) -> socket.socket:
    """The socket to listen at, made here so that what is wrong with the address is an exception and no exit."""
    import socket

    family, kind, protocol, _, address = socket.getaddrinfo(
        config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock
