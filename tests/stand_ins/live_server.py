"""A server on a real port: in a process of its own, or in a thread of this one."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    import pytest
    from llama_batch import Engine
    from llama_batch.server import Settings


class Process:
    """`llama-batch serve` as a user starts it."""

    def __init__(self, *flags: str, env: dict[str, str] | None = None, python: str = sys.executable) -> None:
        words = [python, "-m", "llama_batch.cli", "serve", "--port", "0", *flags]
        self.process = subprocess.Popen(
            words, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.decode().rstrip("\n"))

    def told(self, message: str, limit_s: float = 30.0) -> dict[str, Any]:
        """Wait for a line of the log; its object."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            for line in list(self.lines):
                if line.startswith("{") and (told := json.loads(line))["message"] == message:
                    return dict(told)
            time.sleep(0.01)
        raise AssertionError(f"{message!r} is not in {self.lines}")

    @property
    def port(self) -> int:
        """Where it listens; the model is there too."""
        self.told("ready", 120)
        return int(self.told("listening")["port"])

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, limit_s: float = 30.0) -> int:
        """Its exit code."""
        code = self.process.wait(limit_s)
        self._reader.join(limit_s)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


def post(port: int, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], str]:
    """Send a request, or ask where there is no body: the status, the headers and the whole text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        method = "GET" if body is None else "POST"
        connection.request(method, path, None if body is None else json.dumps(body), headers or {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


def wait_for_slots(port: int, n: int) -> None:
    """Wait until so many requests run."""
    end = time.monotonic() + 20
    while sum(slot["is_processing"] for slot in json.loads(post(port, "/slots", None)[2])) != n:
        assert time.monotonic() < end
        time.sleep(0.01)


@contextlib.contextmanager
def served(engine: Engine, **settings: Any) -> Iterator[tuple[int, Any]]:
    """A server in a thread: its port, and what its requests share."""
    import uvicorn
    from llama_batch.server import create_app

    app = create_app(engine, **settings)
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, lifespan="off", ws="none", backlog=2048)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="test-server")
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1], app.state.service
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@contextlib.contextmanager
def served_whole(
    monkeypatch: pytest.MonkeyPatch, engine: Engine, settings: Settings, **options: Any
) -> Iterator[tuple[int, Any]]:
    """`llama-batch serve` in a thread, with the protocol of its own: its port, and the server.

    Args:
        monkeypatch: tells when it has started.
        engine: what it serves; it is closed at the end.
        settings: of the application.
        options: of `lifecycle.serve`.
    """
    from llama_batch.server import lifecycle

    found: list[lifecycle.Server] = []
    startup = lifecycle.Server.startup

    async def started(self: lifecycle.Server, sockets: list[socket.socket] | None = None) -> None:
        await startup(self, sockets)
        found.append(self)

    monkeypatch.setattr(lifecycle.Server, "startup", started)
    thread = threading.Thread(target=lambda: lifecycle.serve(engine, settings, port=0, **options))
    thread.start()
    try:
        while not found:
            time.sleep(0.01)
        yield found[0].servers[0].sockets[0].getsockname()[1], found[0]
    finally:
        found[0].should_exit = True
        thread.join(20)
        assert not thread.is_alive()
