"""Server-sent events: bytes, and the stream that carries them."""

from __future__ import annotations

import asyncio
import contextlib
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

from llama_batch.errors import LlamaBatchError
from llama_batch.server.failures import HttpError
from llama_batch.server.json_io import dumps
from llama_batch.server.service import ClientGoneError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from llama_batch.generation import Generation
    from llama_batch.server.service import Call

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"

_MARK = "\x00text\x00"


def event(value: Any) -> bytes:
    r"""One event.

    Args:
        value: what JSON can hold.

    Returns:
        Its bytes.

    Example:
        >>> event({"a": 1})
        b'data: {"a":1}\n\n'
    """
    return b"data: " + dumps(value) + b"\n\n"


def text_event(make: Callable[[str], Any]) -> Callable[[str], bytes]:
    r"""A maker of events that differ in one text only: what stands before and behind it is written once.

    Args:
        make: makes the event's value from the text.

    Returns:
        Makes the event's bytes from the text.

    Example:
        >>> text_event(lambda text: {"text": text})("Hello")
        b'data: {"text":"Hello"}\n\n'
    """
    before, behind = event(make(_MARK)).split(dumps(_MARK))

    def write(text: str) -> bytes:
        return before + encode_basestring(text).encode() + behind

    return write


class SseStream:
    """An answer that is sent as it is made.

    Its headers go out with its first event, so that what fails before is an answer with a status of its own. Silence
    is broken by comments, which also keep proxies from giving up while a prompt waits or is read.
    """

    def __init__(self, call: Call, ping_s: float | None = None) -> None:
        """Answer a request.

        Args:
            call: the request.
            ping_s: the silence after which a comment is sent; 0 never; None as the operator decided. Unit: seconds.
        """
        self._call = call
        self._ping_s = call.service.settings.ping_s if ping_s is None else ping_s
        self._is_open = self._is_over = False
        self._lock = asyncio.Lock()  # events come from the prompts of a request, pings from the clock
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None

    async def write(self, data: bytes) -> None:
        """Send events.

        Args:
            data: whole events.

        Raises:
            ClientGoneError: nobody reads any more, so nothing more need be made.
        """
        async with self._lock:
            if self._is_over:
                return  # a ping that came too late
            if self._call.is_gone:
                raise ClientGoneError
            if not self._is_open:
                await self._open()
            await self._call.send_on({"type": "http.response.body", "body": data, "more_body": True})
            self._last = self._loop.time()

    async def _open(self) -> None:
        self._is_open = True
        await self._call.send({
            "type": "http.response.start",
            "status": 200,
            "headers": [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
            ],
        })  # fmt: skip

    @contextlib.asynccontextmanager
    async def carrying(self, generations: list[Generation]) -> AsyncIterator[None]:
        """The time in which requests of the engine are sent; the stream ends with it.

        An error before the first event is raised; a later one is the stream's last event.
        """
        self._wind()
        try:
            async with self._call.watching(generations):
                yield
        except (LlamaBatchError, HttpError) as error:
            if not self._is_open:
                raise
            failure = self._call.failure(error)
            self._call.facts["error"] = failure.code
            await self.write(b"event: error\n" + event(failure.body()))
        finally:
            self._unwind()
        await self._end()

    async def _end(self) -> None:
        async with self._lock:
            self._is_over = True
            if not self._is_open:
                await self._open()
            await self._call.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _wind(self) -> None:
        if self._ping_s > 0:
            # Looked at more often than it is due: the last event came at some time in between.
            self._timer = self._loop.call_later(self._ping_s / 4, self._look)

    def _unwind(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._loop.time() - self._last >= self._ping_s and not self._lock.locked():
            self._ping = self._loop.create_task(self.write(PING))
            # Whether the client can still be reached is for those to find out who have something to say.
            self._ping.add_done_callback(lambda ping: ping.cancelled() or ping.exception())
        self._wind()
