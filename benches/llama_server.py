"""llama.cpp's own llama-server: started on a free port, asked over HTTP as its users ask it, and stopped.

The reader is plain asyncio, since what it takes of the cores is missing on the server's side of a comparison. Tokens
are counted from the last message of an answer; a chunk says only when something came.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 900.0
HOST = "127.0.0.1"


@dataclass(slots=True)
class Answer:
    """How one request went, from either side. Times are `time.perf_counter()`'s.

    Attributes:
        asked: When it was sent.
        ended: When its last message was there, or its failure.
        times: When each token came; several come at once where a reader was slow.
        tokens: What was generated.
        n_tokens: How many tokens that were, by the server's own count.
        n_cached: Prompt tokens that were not computed.
        failure: Why it is not complete; None where it is.
    """

    asked: float
    ended: float = 0.0
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    n_tokens: int = 0
    n_cached: int = 0
    failure: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token; None where none came."""
        return self.times[0] - self.asked if self.times else None


class LlamaServer:
    """A running llama-server, or another program that takes --host and --port and has /health, as ours does.

    Example:
        >>> with LlamaServer(binary, ["-m", "model.gguf", "-c", "8192"]) as server:
        ...     answer = asyncio.run(server.ask([1, 2, 3], 16))
    """

    def __init__(self, binary: Path, arguments: Sequence[str], env: dict[str, str] | None = None) -> None:
        """Prepare one; `with` starts it.

        Args:
            binary: The program.
            arguments: All but where it listens.
            env: Its environment; None means ours.
        """
        self.port = _free_port()
        self.arguments = [*arguments, "--host", HOST, "--port", str(self.port)]
        self._command = [str(binary), *self.arguments]
        self._env = env
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the server
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it and wait until it has loaded its model."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=self._env
        )
        try:
            self._wait_ready(self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    @property
    def pid(self) -> int:
        """Its process."""
        if self._process is None:
            raise RuntimeError("it was not started")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    def log(self, n_bytes: int = 2000) -> str:
        """The end of what it logged.

        Args:
            n_bytes: How much of it.

        Returns:
            The text.
        """
        self._log.seek(0)
        return self._log.read()[-n_bytes:].decode(errors="replace")

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"http://{HOST}:{self.port}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):  # not listening yet, or 503 while it loads
                time.sleep(0.05)
        raise SystemExit(f"{shlex.join(self._command)} did not start:\n{self.log()}")

    async def ask(
        self,
        prompt: Sequence[int] | str,
        n_predict: int,
        temp: float = 0,
        *,
        answer: Answer | None = None,
        tenant: str | None = None,
    ) -> Answer:
        """Send a streamed /completion and read it to its end.

        A greedy one stops at the model's end of generation too, as ours does.

        Args:
            prompt: Token ids, or text.
            n_predict: Tokens to generate.
            temp: The temperature; 0 is greedy.
            answer: Where to note it as it comes.
            tenant: Whose request it is; llama-server knows no tenants.

        Returns:
            How it went; failures of any kind are in it and never raised.
        """
        del tenant
        prompt = prompt if isinstance(prompt, str) else list(prompt)
        asked = {"prompt": prompt, "n_predict": n_predict, "stream": True, "cache_prompt": True, "temperature": temp}
        asked["ignore_eos"] = temp > 0
        answer = answer or Answer(0.0)
        answer.asked = time.perf_counter()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                async for message in _post(self.port, "/completion", asked):
                    _take(answer, message)
            if not answer.ended:
                answer.failure = answer.failure or "the stream ended before its last message"
        except (OSError, EOFError, ValueError) as error:  # what a server that died or talks nonsense looks like
            answer.failure = f"{type(error).__name__}: {error}"
        answer.ended = answer.ended or time.perf_counter()
        return answer


def _take(answer: Answer, message: dict[str, Any]) -> None:
    """Note one message of an answer."""
    now = time.perf_counter()
    if "error" in message:
        answer.failure, answer.ended = str(message["error"].get("message", message["error"])), now
        return
    answer.tokens += message["tokens"]
    answer.times += [now] * len(message["tokens"])
    if message["stop"]:
        answer.ended, answer.n_tokens = now, message["tokens_predicted"]
        answer.n_cached = message["timings"].get("cache_n", 0)
        if message["truncated"]:
            answer.failure = f"truncated after {answer.n_tokens} tokens"


async def _post(port: int, path: str, asked: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """POST JSON and give the JSON messages of the answer, be it a stream of events or one body."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        body = json.dumps(asked).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        header = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if "text/event-stream" not in header:
            length = [line.split(":")[1] for line in header.split("\r\n") if line.startswith("content-length:")]
            yield json.loads(await (reader.readexactly(int(length[0])) if length else reader.read()))
            return
        pending = b""
        async for piece in _chunks(reader):
            *events, pending = (pending + piece).split(b"\n\n")
            for event in events:
                data = b"".join(line[5:] for line in event.split(b"\n") if line.startswith(b"data:")).strip()
                if event.startswith(b"error:"):
                    yield {"error": json.loads(event[6:])}
                elif data and data != b"[DONE]":
                    yield json.loads(data)
    finally:
        writer.close()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The pieces of a body in chunked transfer encoding, until the last one."""
    while size := int(await reader.readline() or b"0", 16):
        yield (await reader.readexactly(size + 2))[:-2]


def _free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
