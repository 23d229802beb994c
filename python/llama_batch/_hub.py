"""How a coroutine waits for the engine, in asyncio and in trio: one hub for each event loop.

The engine rings a hub's bell once for each tick, without the GIL; the loop then wakes whoever waits for what came.
Nothing here imports asyncio or trio: whoever runs a loop has imported it.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, ref

from llama_batch import _core

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    import trio

T = TypeVar("T")


class Hub(Protocol):
    """What a coroutine needs of its loop."""

    core: _core.Hub

    async def wait(self, key: int, is_there: Callable[[], bool]) -> None:
        """Wait until the key is marked, unless `is_there()`, which subscribes to it, says that something is there."""


class AsyncioHub:
    """The hub of an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # A strong reference would keep the loop, and with it this hub, in the table of hubs for ever.
        self._loop = ref(loop)
        self.core = _core.Hub(True)
        fileno = self.core.fileno()
        try:
            if fileno is not None:
                loop.add_reader(fileno, self.ring)
                return
        except NotImplementedError:
            pass
        # Windows' proactor watches no sockets.
        self.core = _core.Hub(False)
        threading.Thread(target=self._pump, name="llama-batch-wake", daemon=True).start()

    async def wait(self, key: int, is_there: Callable[[], bool]) -> None:
        """Wait until the key is marked, unless something is there already."""
        future = sys.modules["asyncio"].get_running_loop().create_future()
        self.core.add(key, future)
        try:
            if not is_there():
                await future
        finally:
            self.core.remove(key, future)

    def ring(self) -> None:
        """Wake whoever waits for what was marked. The loop calls it, and holds this hub by it."""
        self.core.ring()

    def close(self) -> None:
        """Ring no more; the loop is closed."""
        self.core.close()

    __del__ = close

    def _pump(self) -> None:
        while self.core.wait():
            loop = self._loop()
            if loop is None or loop.is_closed():
                return
            rung = threading.Event()

            def ring(rung: threading.Event = rung) -> None:
                self.core.ring()
                rung.set()

            try:
                loop.call_soon_threadsafe(ring)
            except RuntimeError:
                return
            del loop
            # A loop that closes before it gets there never rings.
            while not rung.wait(1.0) and not ((loop := self._loop()) is None or loop.is_closed()):
                del loop


class TrioHub:
    """The hub of a trio run."""

    def __init__(self) -> None:
        self.core = _core.Hub(True)
        self._waiters: dict[int, list[trio.Event]] = {}

    async def wait(self, key: int, is_there: Callable[[], bool]) -> None:
        """Wait until the key is marked, unless something is there already."""
        event: trio.Event = sys.modules["trio"].Event()
        waiters = self._waiters.setdefault(key, [])
        waiters.append(event)
        try:
            if not is_there():
                await event.wait()
        finally:
            if not event.is_set():
                with suppress(ValueError):
                    waiters.remove(event)
                if not waiters and self._waiters.get(key) is waiters:
                    del self._waiters[key]

    async def pump(self) -> None:
        """Wake whoever waits, until the run ends."""
        lowlevel: Any = sys.modules["trio"].lowlevel
        fileno = self.core.fileno()
        try:
            while True:
                if fileno is None:
                    await sys.modules["trio"].to_thread.run_sync(self.core.wait, abandon_on_cancel=True)
                else:
                    await lowlevel.wait_readable(fileno)
                for key in self.core.drain():
                    for event in self._waiters.pop(key, ()):
                        event.set()
        finally:
            self.core.close()


# A hub that was held here would hold its loop for ever, by the futures of those who wait.
_asyncio_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[AsyncioHub]] = WeakKeyDictionary()
_trio_hubs: list[Any] = []
_lock = threading.Lock()


def current_hub() -> Hub:
    """The hub of the running loop.

    Raises:
        RuntimeError: no asyncio loop and no trio run is running in this thread.
    """
    if in_trio():
        return _current_trio_hub()
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        raise RuntimeError("no running event loop")
    return asyncio_hub(asyncio.get_running_loop())


def asyncio_hub(loop: asyncio.AbstractEventLoop) -> AsyncioHub:
    """The hub of an asyncio loop. The Rust side asks for it too, once for each reader."""
    known = _asyncio_hubs.get(loop)
    hub = None if known is None else known()
    return hub if hub is not None else _new_asyncio_hub(loop)


def in_trio() -> bool:
    """Whether a trio task is running."""
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_task()


def _new_asyncio_hub(loop: asyncio.AbstractEventLoop) -> AsyncioHub:
    hub = AsyncioHub(loop)
    with _lock:
        for old in [old for old in _asyncio_hubs if old.is_closed()]:
            closed = _asyncio_hubs.pop(old)()
            if closed is not None:
                closed.close()
        _asyncio_hubs[loop] = ref(hub)
    return hub


def _current_trio_hub() -> TrioHub:
    lowlevel: Any = sys.modules["trio"].lowlevel
    with _lock:
        if not _trio_hubs:
            _trio_hubs.append(lowlevel.RunVar("llama_batch_hub"))
    variable = _trio_hubs[0]
    try:
        hub: TrioHub = variable.get()
    except LookupError:
        hub = TrioHub()
        variable.set(hub)
        lowlevel.spawn_system_task(hub.pump, name="llama-batch hub")
    return hub


async def run_in_thread(call: Callable[[], T]) -> T:
    """Run something that blocks on a thread of the running loop."""
    if in_trio():
        result: T = await sys.modules["trio"].to_thread.run_sync(call, abandon_on_cancel=True)
        return result
    asyncio = sys.modules["asyncio"]
    done: T = await asyncio.get_running_loop().run_in_executor(None, call)
    return done


def spawn(coroutine: Coroutine[Any, Any, None], on_end: Callable[[], None]) -> Callable[[], None]:
    """Run a coroutine beside the running task.

    Args:
        coroutine: raises nothing but its own cancellation.
        on_end: called in the loop when it has ended, also where it never began.

    Returns:
        What cancels it, from any thread.
    """
    if in_trio():
        return _spawn_in_trio(coroutine, on_end)
    asyncio = sys.modules["asyncio"]
    loop = asyncio.get_running_loop()
    task = loop.create_task(coroutine)
    task.add_done_callback(lambda _: on_end())

    def cancel() -> None:
        if asyncio._get_running_loop() is loop:
            task.cancel()
        else:
            with suppress(RuntimeError):  # a loop that is closed has nothing left to cancel
                loop.call_soon_threadsafe(task.cancel)

    return cancel


def _spawn_in_trio(coroutine: Coroutine[Any, Any, None], on_end: Callable[[], None]) -> Callable[[], None]:
    trio: Any = sys.modules["trio"]
    scope, token = trio.CancelScope(), trio.lowlevel.current_trio_token()

    async def run() -> None:
        try:
            with scope:
                await coroutine
        finally:
            on_end()

    def cancel() -> None:
        if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is token:
            scope.cancel()
        else:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(scope.cancel)

    trio.lowlevel.spawn_system_task(run, name="llama-batch prompts", context=copy_context())
    return cancel


async def sleep(seconds: float) -> None:
    """Let others run for a while."""
    library = sys.modules["trio" if in_trio() else "asyncio"]
    await library.sleep(seconds)
