"""Transports of httpx and httpx2 that call an application instead of a port; bodies stream, and closing disconnects.

The transport that httpx2 has for ASGI collects an answer before it gives any of it, so streams would come at their end.
Both libraries take any object with a transport's methods; only the bodies must be of a class of theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Self, TypeVar

from llama_batch._exchange import BrokenOffError, Exchange, scope_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from llama_batch._exchange import App

T = TypeVar("T")


def _scope(request: Any) -> dict[str, Any]:
    raw_path, _, query = request.url.raw_path.partition(b"?")
    headers = [(name.lower(), value) for name, value in request.headers.raw]
    return scope_of(request.method, request.url.path, headers, query=query, raw_path=raw_path)


def _read_timeout(request: Any) -> float | None:
    """The longest silence that the caller bears; the other time-outs of httpx are about connections."""
    seconds: float | None = (request.extensions.get("timeout") or {}).get("read")
    return seconds


class _Waits:
    """Waits on behalf of a request, and says in the words of httpx why there is no use in it."""

    def __init__(self, httpx: Any, request: Any) -> None:
        self._httpx, self._request, self._limit_s = httpx, request, _read_timeout(request)

    async def wait(self, step: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for a step of an exchange, which is begun here: nothing is left unbegun where this never runs.

        Raises:
            httpx.ReadTimeout: it took too long.
            httpx.RemoteProtocolError: the answer broke off.
        """
        try:
            async with asyncio.timeout(self._limit_s):
                return await step()
        except TimeoutError:
            message = f"nothing came for {self._limit_s:g} s"
            raise self._httpx.ReadTimeout(message, request=self._request) from None
        except BrokenOffError as error:
            raise self._httpx.RemoteProtocolError(str(error), request=self._request) from None


class AsyncTransport:
    """For `httpx.AsyncClient`, on any number of asyncio's loops."""

    def __init__(self, make_app: Callable[[], App], httpx: Any) -> None:
        """Serve requests by an application.

        Args:
            make_app: makes it; called once for each event loop, since what its requests share belongs to one.
            httpx: the module, `httpx` or `httpx2`, whose client this serves.
        """
        self._make_app, self._httpx = make_app, httpx
        self._body = type("AsyncBody", (_AsyncBody, httpx.AsyncByteStream), {})
        self._apps: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, App] = weakref.WeakKeyDictionary()
        self._running: set[Exchange] = set()

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request of httpx."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("requests in process need an event loop of asyncio") from None
        body = await request.aread()
        app = self._apps.get(loop)
        if app is None:
            app = self._apps[loop] = self._make_app()
        exchange = Exchange(app, _scope(request), body)
        self._running.add(exchange)
        exchange.task.add_done_callback(lambda _: self._running.discard(exchange))
        waits = _Waits(self._httpx, request)
        try:
            await waits.wait(exchange.head)
        except BaseException:
            exchange.leave()
            raise
        stream = self._body(exchange, waits, loop)
        return self._httpx.Response(exchange.status, headers=exchange.headers, stream=stream)

    async def aclose(self) -> None:
        """End what still runs."""
        here = asyncio.get_running_loop()
        mine = []
        for exchange in list(self._running):
            loop = exchange.task.get_loop()
            if loop is here:
                exchange.leave()
                mine.append(exchange.task)
            else:
                _call(loop, exchange.leave)
        if mine:
            await asyncio.wait(mine)

    async def __aenter__(self) -> Self:
        """Nothing to open."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End what still runs."""
        await self.aclose()


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Call a function on a loop, unless that is closed and nothing runs on it any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


class _AsyncBody:
    """The body of an answer, as it comes."""

    def __init__(self, exchange: Exchange, waits: _Waits, loop: asyncio.AbstractEventLoop) -> None:
        self._exchange, self._waits, self._loop = exchange, waits, loop

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self._waits.wait(self._exchange.part)) is not None:
            yield part

    async def aclose(self) -> None:
        self._exchange.leave()

    def __del__(self) -> None:
        # Whoever drops a stream without closing it wants no more of it either.
        if not self._exchange.task.done():
            _call(self._loop, self._exchange.leave)


class SyncTransport:
    """For `httpx.Client`, from any thread: the application runs on an event loop on a thread of its own."""

    def __init__(self, make_app: Callable[[], App], httpx: Any) -> None:
        """Serve requests by an application.

        Args:
            make_app: makes it, on the first request.
            httpx: the module, `httpx` or `httpx2`, whose client this serves.
        """
        self._make_app, self._httpx = make_app, httpx
        self._body = type("Body", (_Body, httpx.SyncByteStream), {})
        self._thread: _LoopThread | None = None
        self._app: App | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def handle_request(self, request: Any) -> Any:
        """Answer a request of httpx."""
        body = request.read()
        thread, app = self._ready()
        waits = _Waits(self._httpx, request)
        exchange = thread.run(_begun(app, _scope(request), body))
        try:
            thread.run(waits.wait(exchange.head))
        except BaseException:
            _call(thread.loop, exchange.leave)
            raise
        stream = self._body(exchange, waits, thread)
        return self._httpx.Response(exchange.status, headers=exchange.headers, stream=stream)

    def close(self) -> None:
        """End what still runs, and the thread."""
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def __enter__(self) -> Self:
        """Nothing to open."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs, and the thread."""
        self.close()

    def _ready(self) -> tuple[_LoopThread, App]:
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the client is closed")
            if self._thread is None or not self._thread.is_mine:
                self._thread, self._app = _LoopThread(), self._make_app()
            assert self._app is not None
            return self._thread, self._app


async def _begun(app: App, scope: dict[str, Any], body: bytes) -> Exchange:
    return Exchange(app, scope, body)


class _Body:
    """The body of an answer, as it comes."""

    def __init__(self, exchange: Exchange, waits: _Waits, thread: _LoopThread) -> None:
        self._exchange, self._waits, self._thread = exchange, waits, thread

    def __iter__(self) -> Iterator[bytes]:
        while (part := self._thread.run(self._waits.wait(self._exchange.part))) is not None:
            yield part

    def close(self) -> None:
        if not self._exchange.task.done():
            _call(self._thread.loop, self._exchange.leave)

    __del__ = close


class _LoopThread:
    """An event loop on a thread of its own. It ends with `stop`, when nobody holds it, or with the interpreter."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._lock, self._is_over = threading.Lock(), False
        thread = threading.Thread(target=_run, args=(self.loop,), name="llama-batch-openai", daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _stop, self.loop, thread, self._pid)

    @property
    def is_mine(self) -> bool:
        """Whether it runs in this process: a forked child has the loop, and not its thread."""
        return self._pid == os.getpid()

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine on the loop; giving up cancels it."""
        with self._lock:  # what comes before the end is begun before it, and so cancelled by it
            if self._is_over:
                step.close()
                raise RuntimeError("the client is closed")
            future = asyncio.run_coroutine_threadsafe(step, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End what runs on the loop, and the thread."""
        with self._lock:
            self._is_over = True
        self._end()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """A loop's life."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        if rest := asyncio.all_tasks(loop):
            for task in rest:
                task.cancel()
            loop.run_until_complete(asyncio.wait(rest))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int) -> None:
    if pid != os.getpid():
        return
    _call(loop, loop.stop)
    if thread is not threading.current_thread():  # a collector of garbage may run anywhere
        thread.join()
