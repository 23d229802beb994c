"""Whether a client reads what is written for it, and the end of a connection whose client does not."""

from __future__ import annotations

import socket
import struct
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_LOOKS = 4
"""How many times in its limit it is looked whether a client reads."""

_NO_LINGER = struct.pack("HH" if sys.platform == "win32" else "ii", 1, 0)
"""What makes the system drop a connection with all that it has for it."""


class Reading:
    """A transport that looks whether its client reads what is written.

    Whatever is above the transport's limits waits (`FlowControl`), so what is held for a client is bounded; that it is
    not held for ever is seen to here. Bytes that left are counted, since a buffer that only grows may have a reader.
    """

    def __init__(
        self, transport: Any, loop: asyncio.AbstractEventLoop, limit_s: float, then: Callable[[], None]
    ) -> None:
        """Watch over a connection.

        Args:
            transport: the connection's own.
            loop: gives the time.
            limit_s: how long a client may read nothing of what there is. Unit: seconds.
            then: called when one has.
        """
        self._transport, self._loop, self._limit_s, self._then = transport, loop, limit_s, then
        self._n_written = self._n_read = 0
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        """Do all else as the transport does."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write, and begin to look."""
        self._n_written += len(data)
        self._transport.write(data)
        if self._timer is None and self._transport.get_write_buffer_size() > 0:
            self._since = self._loop.time()
            self._wind()

    def unwind(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wind(self) -> None:
        self._timer = self._loop.call_later(self._limit_s / _LOOKS, self._look)

    def _look(self) -> None:
        self._timer = None
        n_left, now = self._transport.get_write_buffer_size(), self._loop.time()
        if n_left == 0:
            return
        n_read = self._n_written - n_left - _n_queued(self._transport.get_extra_info("socket"))
        if n_read != self._n_read:
            self._n_read, self._since = n_read, now
        if now - self._since >= self._limit_s:
            self._then()
        else:
            self._wind()


def _n_queued(connection: socket.socket | None) -> int:
    """What the system holds of what was sent: it takes more only once much of that was read. 0 where it does not tell.

    Unit: bytes.
    """
    if connection is None or sys.platform != "linux":
        return 0
    import fcntl
    import termios

    return int.from_bytes(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def drop(transport: Any) -> None:
    """End a connection, with what it still has for its client: the system, too, forgets that.

    Args:
        transport: the connection's.
    """
    if (connection := transport.get_extra_info("socket")) is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
