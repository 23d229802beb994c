"""uvicorn's protocol, with bounds to what clients hold without asking for anything: connections, heads, and time."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from llama_batch.server.failures import HttpError
from llama_batch.server.json_io import dumps
from llama_batch.server.logs import tell
from llama_batch.server.readers import Reading, drop

if TYPE_CHECKING:
    import asyncio

_MAX_HEAD_BYTES = 64 << 10
"""Request line and headers."""

_LINGER_S = 2.0
"""How long a client that was refused may go on sending: whoever closes over unread bytes takes his answer back."""

_TELL_EVERY_S = 10.0
"""A flood of connections is no flood of lines in the log."""

_SPARE_FILES = 128
"""What the process needs beside its connections: model, caches, loops."""

_OLD_VERSIONS = frozenset({"0.9", "1.0"})
"""Of HTTP: those that know neither chunks nor 100 Continue."""


class Connections:
    """How many connections there may be, and how long each may take to say what it wants and to read what it gets."""

    def __init__(self, at_most: int, head_timeout_s: float, write_timeout_s: float = 0.0) -> None:
        """Set the bounds.

        Args:
            at_most: connections at once.
            head_timeout_s: the time in which a request line and its headers must come. Unit: seconds.
            write_timeout_s: the time in which a client must read some of what was sent to it; 0 is no limit. Unit:
                seconds.
        """
        self.at_most, self.head_timeout_s, self.write_timeout_s = at_most, head_timeout_s, write_timeout_s
        self._n_refused = 0
        self._told_at = float("-inf")

    def refused(self) -> None:
        """Count one that was too many, and tell of them now and then."""
        self._n_refused += 1
        now = time.monotonic()
        if now - self._told_at >= _TELL_EVERY_S:
            tell("too many connections", logging.WARNING, at_most=self.at_most, refused=self._n_refused)
            self._told_at, self._n_refused = now, 0


class LimitedProtocol(HttpToolsProtocol):
    """One connection. What is refused before it reaches the application is said in the words of all other errors."""

    def __init__(self, *args: Any, bounds: Connections, **kwargs: Any) -> None:
        """Begin a connection.

        Args:
            args: of uvicorn.
            bounds: what all connections share.
            kwargs: of uvicorn.
        """
        super().__init__(*args, **kwargs)
        self._bounds = bounds
        self._n_head = 0
        self._is_in_head = True
        self._is_over = False
        """Whether it was refused: what still comes is not read."""
        self._timer: asyncio.TimerHandle | None = None
        self._reading: Reading | None = None
        self._cycles: deque[Any] = deque()
        """Requests that have no whole answer yet; several, where a client does not wait for one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection, or refuse it."""
        if self._bounds.write_timeout_s > 0:
            self._reading = Reading(transport, self.loop, self._bounds.write_timeout_s, self._be_deaf)
            transport = self._reading  # type: ignore[assignment]
        super().connection_made(transport)  # type: ignore[arg-type]
        if len(self.connections) > self._bounds.at_most:
            self.connections.discard(self)  # those who are refused take no place
            self._bounds.refused()
            message = f"there are {self._bounds.at_most} connections, which is the most; see --max-connections"
            self._refuse(HttpError(503, message, code="too_many_connections", headers={"retry-after": "1"}))
            return
        self._wind(self._bounds.head_timeout_s, self._be_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Hear that it is over."""
        self._unwind()
        if self._reading is not None:
            self._reading.unwind()
        super().connection_lost(exc)
        for cycle in self._cycles:  # uvicorn tells the last one alone, behind which others may be answered
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Read what came."""
        if self._is_over:
            return
        if self._is_in_head:
            self._n_head += len(data)
            if self._timer is None:
                self._wind(self._bounds.head_timeout_s, self._be_late)
        super().data_received(data)
        if self._is_in_head and self._n_head > _MAX_HEAD_BYTES and not self._is_over:
            self.send_400_response("the headers are too long")

    def on_headers_complete(self) -> None:
        """Hear that the head is there."""
        self._is_in_head = False
        self._unwind()
        super().on_headers_complete()
        cycle: Any = self.cycle  # made just now, and not begun
        while self._cycles and self._cycles[0].response_complete:
            self._cycles.popleft()
        self._cycles.append(cycle)
        if self.scope["http_version"] in _OLD_VERSIONS:
            cycle.send = _Unbounded(cycle).send

    def on_message_complete(self) -> None:
        """Hear that the body is there."""
        super().on_message_complete()
        self._unwind()
        self._n_head, self._is_in_head = 0, True

    def on_response_complete(self) -> None:
        """Hear that the answer is out. A body that nobody waited for may come to its end, but not take for ever."""
        is_early = self.cycle.response_complete and not self._is_in_head
        super().on_response_complete()
        if is_early and not self.transport.is_closing():
            self._wind(_LINGER_S, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request of HTTP.

        Args:
            msg: uvicorn's words, or ours.
        """
        self._refuse(HttpError(400, msg, code="invalid_http"))

    def _be_late(self) -> None:
        self._timer = None
        if self._is_answering():
            # The next request waits behind an answer: whoever reads that has time.
            self._wind(self._bounds.head_timeout_s, self._be_late)
        elif self._n_head > 0:
            limit_s = self._bounds.head_timeout_s
            self._refuse(HttpError(408, f"the headers did not come within {limit_s:g} s", code="head_timeout"))
        else:
            self.transport.close()

    def _be_deaf(self) -> None:
        """End a connection whose client does not read: what is under way for it hears that it is gone."""
        client = self.client[0] if self.client else None
        tell("a client does not read", client=client, limit_s=self._bounds.write_timeout_s)
        drop(self.transport)

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _refuse(self, error: HttpError) -> None:
        """Say an error and end the connection, not without having read what the client sends meanwhile."""
        self._is_over = True
        self._unwind()
        if self.transport.is_closing():
            return
        if self._is_answering():
            cycle: Any = self.cycle
            if self.pipeline or cycle.response_started or not cycle.more_body:
                # Whatever is said now would stand in the middle of the answer to the request before.
                self.transport.close()
                return
            # What is wrong is the body of a request that nothing was said to yet: it has no client any more.
            cycle.disconnected = True
            cycle.message_event.set()
        body = dumps(error.body())
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **error.headers,
        }
        lines = [STATUS_LINE[error.status]]
        lines += [name + b": " + value + b"\r\n" for name, value in self.server_state.default_headers]
        lines += [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
        self.transport.write(b"".join([*lines, b"\r\n", body]))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._wind(_LINGER_S, self.transport.close)

    def _wind(self, seconds: float, then: Any) -> None:
        self._unwind()
        self._timer = self.loop.call_later(seconds, then)

    def _unwind(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Unbounded:
    """How an answer of unknown length is sent to a client that knows no chunks: it ends with its connection.

    uvicorn knows two ways to say where an answer ends, chunks and a length. Of the second one this has as much at a
    time as each part is long.
    """

    def __init__(self, cycle: Any) -> None:
        """Take the place of a cycle's `send`, before it begins.

        Args:
            cycle: uvicorn's, of one request.
        """
        self._cycle, self._send = cycle, cycle.send
        self._is_unbounded = False
        cycle.waiting_for_100_continue = False

    async def send(self, message: Any) -> None:
        """Send a message of ASGI."""
        if message["type"] == "http.response.start":
            if not any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
                self._is_unbounded, self._cycle.chunked_encoding = True, False
        elif self._is_unbounded:
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)


def allow_files(n_connections: int) -> int:
    """Let the process have as many files open as its connections need, as far as the system lets it.

    Args:
        n_connections: connections at once.

    Returns:
        Files that the process may have open; what it needs, where the system does not tell.
    """
    needed = n_connections + _SPARE_FILES
    try:
        import resource
    except ImportError:  # Windows counts no descriptors
        return needed
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= needed:
        return needed if soft == unlimited else soft
    wanted = needed if hard == unlimited else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted
