"""HTTP/1.1 with as little of the client's time as possible: connections that are kept, and events told as they arrive.

A client that takes long for a chunk measures itself: of the clients at hand, those that wake a task for each chunk cost
several times what a simulated token takes. Here a body is parsed where it is received (httptools), and the time of an
event is when its bytes came.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llama_batch.benchmark.errors import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Connections", "Response", "Sse"]

MAX_BODY = 1 << 20
MAX_LINE = 16 << 20


class Sse:
    r"""Server-sent events out of bytes, however these are cut.

    Example:
        >>> Sse(print).feed(1.5, b'data: {"a": 1}\n\n')
        1.5 message b'{"a": 1}'
    """

    def __init__(self, take: Callable[[float, str, bytes], None]) -> None:
        """Read a stream.

        Args:
            take: called with the time, the name and the data of each event that has data.
        """
        self._take = take
        self._pending = b""
        self._name = "message"
        self._data: list[bytes] = []

    def feed(self, at: float, piece: bytes) -> None:
        """Read on.

        Args:
            at: when the piece came.
            piece: the next bytes.

        Raises:
            ValueError: a line is longer than any answer.
        """
        *lines, self._pending = (self._pending + piece).split(b"\n")
        if len(self._pending) > MAX_LINE:
            raise ValueError("an event that is longer than any answer")
        for line in lines:
            self._line(at, line.removesuffix(b"\r"))

    def _line(self, at: float, line: bytes) -> None:
        if not line:
            if self._data:
                self._take(at, self._name, b"\n".join(self._data))
            self._name, self._data = "message", []
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value.decode(errors="replace")
        elif name == b"error":  # as llama-server's own events have it
            self._name, self._data = "error", [value]


@dataclass(slots=True)
class Response:
    """An answer.

    Attributes:
        status: its status.
        headers: by name, in lower case.
        body: its body, the beginning of it; empty where it was taken as a stream.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream of events that went well so far."""
        return self.status == 200 and self.headers.get("content-type", "").startswith("text/event-stream")


class _Connection(asyncio.Protocol):
    """One connection, and the exchange that it carries."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._parser: Any = None
        self._response = Response()
        self._take: Callable[[float, bytes], None] | None = None
        self._over: asyncio.Future[Response] | None = None
        self._at = 0.0
        self.is_open = False
        self.has_answered = False

    async def exchange(self, request: bytes, take: Callable[[float, bytes], None] | None) -> Response:
        """Send a request and read its answer to the end; a stream's pieces are taken as they come."""
        import httptools

        self._parser, self._response = httptools.HttpResponseParser(self), Response()
        self._take, self.has_answered = take, False
        self._over = asyncio.get_running_loop().create_future()
        if not self.is_open:
            raise ConnectionResetError("the server closed the connection")
        self._transport.write(request)
        try:
            return await self._over
        finally:
            self._over = None

    def close(self) -> None:
        """Leave at once, so that the server sees it."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        self._transport, self.is_open = transport, True

    def data_received(self, data: bytes) -> None:
        self._at = time.perf_counter()
        if self._over is None:  # nothing was asked
            self.close()
            return
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except Exception as error:  # noqa: BLE001 - the parser's own, or what came of an event
            cause = error.__context__ if isinstance(error.__context__, ValueError) else error
            self._fail(ValueError(f"no HTTP, or no stream of events: {cause}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        headers = self._response.headers
        has_end = "content-length" in headers or "chunked" in headers.get("transfer-encoding", "")
        if self._response.status and not has_end and exc is None:
            self._finish()  # a body without a length ends with the connection
        else:
            self._fail(exc or ConnectionResetError("the server closed the connection"))

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._response.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._take is not None and self._response.is_stream:
            self._take(self._at, body)
        elif len(self._response.body) < MAX_BODY:
            self._response.body += body

    def on_message_complete(self) -> None:
        if self._response.status >= 200:  # 1xx comes before the answer
            if not self._parser.should_keep_alive():
                self.is_open = False
            self._finish()

    def _finish(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(self._response)

    def _fail(self, error: Exception) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)


class Connections:
    """Connections to one server, kept for the requests to come."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """Prepare for a server; nothing is opened yet.

        Args:
            url: `http` or `https`, the host, perhaps a port and a path that all paths are below.
            headers: of all requests.

        Raises:
            BenchmarkError: that is no such URL, or httptools is not installed.
        """
        try:
            import httptools  # noqa: F401 - better missed here than in the middle
        except ImportError:
            raise BenchmarkError("measuring over HTTP needs httptools: pip install 'llama-batch[bench]'") from None
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise BenchmarkError(f"{url!r} is no URL of a server, such as http://127.0.0.1:8080")
        self._host, self._ssl = parts.hostname, ssl.create_default_context() if parts.scheme == "https" else None
        self._port = port or (443 if self._ssl else 80)
        self._path = parts.path.rstrip("/")
        host = f"[{self._host}]" if ":" in self._host else self._host
        kept = {"host": host if port is None else f"{host}:{port}", "accept-encoding": "identity", **headers}
        for name, value in kept.items():
            if not (name + value).isascii() or any(c in name + value for c in "\r\n\0"):
                raise BenchmarkError(f"the header {name} has characters that no header can have")
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in kept.items())
        self._idle: list[_Connection] = []

    async def request(
        self, method: str, path: str, body: bytes = b"", take: Callable[[float, bytes], None] | None = None
    ) -> Response:
        """Send a request and read its answer to the end.

        Args:
            method: `GET` or `POST`.
            path: below the URL's own.
            body: JSON, where there is one.
            take: gets the pieces of a stream of events, each with the time at which it came.

        Returns:
            The answer.

        Raises:
            OSError: the server cannot be reached, or hung up.
            ValueError: what came is no HTTP, or `take` could not read it.
        """
        typed = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if method == "POST" else ""
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}{typed}\r\n".encode("latin-1")
        while True:
            connection = self._kept()
            is_fresh = connection is None
            connection = connection or await self._connect()
            try:
                response = await connection.exchange(head + body, take)
            except ConnectionError:
                # A server may close a connection that was idle just when it is used again; nothing was answered then.
                if is_fresh or connection.has_answered:
                    raise
                continue
            except BaseException:
                connection.close()
                raise
            if connection.is_open:
                self._idle.append(connection)
            else:
                connection.close()
            return response

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()

    def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> _Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            _Connection, self._host, self._port, ssl=self._ssl
        )
        return connection
