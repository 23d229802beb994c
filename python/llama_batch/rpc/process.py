"""One child process of a worker: started, listened to, ended."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO, Any

from llama_batch._rpc_child import MARK

_MAX_LINE = 8192
_ACCEPTED, _CLOSED = "Accepted client connection", "Client connection closed"
_logger = logging.getLogger("llama_batch.rpc.worker")


class Child:
    """A process that serves, and what is known of it. For one thread, but for attributes that are read."""

    def __init__(self, what: dict[str, Any]) -> None:
        """Start it.

        Args:
            what: What `llama_batch._rpc_child` is to serve.

        Raises:
            OSError: there is no process to be had.
        """
        self.endpoint = f"{what['host']}:{what['port']}"
        self.devices: list[tuple[str, str, int, int]] = []
        self.is_listening = False
        self.failure: tuple[str, str] | None = None
        self.n_clients = self.n_closed = 0
        self.started = time.monotonic()
        self.closed_at: float | None = None
        self.last_lines: deque[str] = deque(maxlen=5)
        self._begun = b""
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "llama_batch._rpc_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": path},
        )
        with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit code says more
            self._stdin.write(json.dumps(what).encode() + b"\n")

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def fd(self) -> int:
        """What it says can be read here."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def is_connected(self) -> bool:
        """Whether a client is connected."""
        return self.n_clients > self.n_closed

    @property
    def rss_bytes(self) -> int | None:
        """The memory that it has; None where the system does not tell."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        except (OSError, ValueError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    def read(self) -> bool:
        """Take what it says; False at the end of it, which is its own."""
        block = os.read(self.fd, 1 << 16)
        if not block:
            return False
        *lines, self._begun = (self._begun + block).split(b"\n")
        if len(self._begun) > _MAX_LINE:
            lines.append(self._begun)
            self._begun = b""
        for line in lines:
            self._note(line.decode("utf-8", "replace").rstrip())
        return True

    def _note(self, line: str) -> None:
        if line.startswith(MARK):
            told = json.loads(line.removeprefix(MARK))
            self.devices = told.get("devices", self.devices)
            self.is_listening = self.is_listening or told.get("listening", False)
            if "failed" in told:
                self.failure = (told["reason"], told["failed"])
        elif line:
            self.n_clients += line == _ACCEPTED
            if line == _CLOSED:
                self.n_closed += 1
                self.closed_at = time.monotonic()
            self.last_lines.append(line)
            _logger.info("%s: %s", self.endpoint, line)

    def ask_to_end(self) -> None:
        """Close the pipe whose end it waits for."""
        with contextlib.suppress(OSError):
            self._stdin.close()

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def reap(self) -> int:
        """Its exit code, once it said all: negative is the number of a signal."""
        code = self._process.wait()
        self.ask_to_end()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code
