"""One request to an ASGI application in this process, without a port between."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping

    App = Callable[..., Awaitable[None]]

HOST = "llama-batch.invalid"
"""What the application is called where a URL needs a host: a name that never leads anywhere (RFC 2606)."""

_MAX_PARTS = 64
"""Parts of a body that wait for their reader; then the application waits, as it would for a socket."""


_running: set[asyncio.Future[None]] = set()
"""What runs, held: event loops hold tasks weakly, and a client that left holds nothing."""


class BrokenOffError(Exception):
    """The application ended before its answer did."""


class Exchange:
    """A request and its answer, which comes part by part. Lives on one event loop.

    Attributes:
        task: runs the application.
        status: the answer's status, after `head`.
        headers: its headers.
    """

    def __init__(self, app: App, scope: MutableMapping[str, Any], body: bytes) -> None:
        """Send a request.

        Args:
            app: the application.
            scope: from `scope_of`.
            body: the request's body.
        """
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._body: bytes | None = body
        self._parts: deque[bytes] = deque()
        self._is_whole = False
        self._news, self._room, self._left = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._room.set()
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))
        _running.add(self.task)
        self.task.add_done_callback(self._ended)

    async def head(self) -> None:
        """Wait for status and headers.

        Raises:
            BrokenOffError: there are none.
        """
        await self._until(lambda: self.status != 0)

    async def part(self) -> bytes | None:
        """Wait for what is there of the body and was not given yet; None at its end.

        Raises:
            BrokenOffError: it has no end.
        """
        await self._until(lambda: bool(self._parts) or self._is_whole)
        if not self._parts:
            return None
        part = b"".join(self._parts)
        self._parts.clear()
        self._room.set()
        return part

    def leave(self) -> None:
        """Go away, as a client that closes its connection. The application cancels what it did for this request."""
        self._left.set()
        self._room.set()
        self._news.set()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if self.task.done() or self._left.is_set():
                raise BrokenOffError("the answer broke off")
            self._news.clear()
            await self._news.wait()

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if self._left.is_set():
            return  # there is nobody to send it to
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            if body := message.get("body", b""):
                self._parts.append(body)
                if len(self._parts) >= _MAX_PARTS:
                    self._room.clear()
            self._is_whole = not message.get("more_body", False)
        self._news.set()
        await self._room.wait()

    def _ended(self, task: asyncio.Future[None]) -> None:
        _running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: who waits hears that the answer broke off
        self._news.set()


def scope_of(
    method: str, path: str, headers: Iterable[tuple[bytes, bytes]], *, query: bytes = b"", raw_path: bytes | None = None
) -> dict[str, Any]:
    """What ASGI calls the scope of a request.

    Args:
        method: of HTTP.
        path: without a query, decoded.
        headers: names in lower case, and values.
        query: what follows the question mark.
        raw_path: the path as it was written; None quotes `path`.

    Returns:
        The scope.
    """
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode() if raw_path is None else raw_path,
        "query_string": query,
        "root_path": "",
        "headers": list(headers),
        "client": None,
        "server": (HOST, 80),
    }


async def post(app: App, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    """Post JSON and wait for the whole answer. Cancelling it cancels the request.

    Args:
        app: the application.
        path: without a query.
        body: UTF-8.

    Returns:
        Status, headers and body.

    Raises:
        BrokenOffError: the answer has no end.
    """
    headers = [(b"host", HOST.encode()), (b"content-type", b"application/json")]
    exchange = Exchange(app, scope_of("POST", path, headers), body)
    parts = []
    try:
        await exchange.head()
        while (part := await exchange.part()) is not None:
            parts.append(part)
    finally:
        exchange.leave()
    told = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in exchange.headers}
    return exchange.status, told, b"".join(parts)
