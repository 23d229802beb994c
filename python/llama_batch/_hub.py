"""How a coroutine waits for the engine, in asyncio and in trio: one hub for each event loop.

The engine rings a hub's bell once for each tick, without the GIL; the loop then wakes whoever waits for what came.
Nothing here imports asyncio or trio: whoever runs a loop has imported it.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, ref

from llama_batch import _core

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    import trio

T = TypeVar("T")

new_key = count(1).__next__
"""Keys under which hubs know what is waited for."""


class Hub(Protocol):
    """What a coroutine needs of its loop."""

    core: _core.Hub

    async def wait(self, key: int, is_there: Callable[[], bool]) -> None:
        """Wait until the key is marked, unless `is_there()`, which subscribes to it, says that something is there."""


class AsyncioHub:
    """The hub of an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.core = _core.Hub(True)
        # A strong reference would keep the loop, and with it this hub, in the table of hubs for ever.
        self._loop = ref(loop)
        self._waiters: dict[int, list[asyncio.Future[None]]] = {}
        fileno = self.core.fileno()
        try:
            if fileno is None:
                raise NotImplementedError
            loop.add_reader(fileno, self._drain)
        except NotImplementedError:
            # Windows' proactor watches no sockets.
            self.core = _core.Hub(False)
            threading.Thread(target=self._pump, name="llama-batch-wake", daemon=True).start()

    async def wait(self, key: int, is_there: Callable[[], bool]) -> None:
        """Wait until the key is marked, unless something is there already."""
        loop = self._loop()
        assert loop is not None, "a running loop exists"
        future = loop.create_future()
        waiters = self._waiters.setdefault(key, [])
        waiters.append(future)
        try:
            if not is_there():
                await future
        finally:
            if not future.done() or future.cancelled():
                with suppress(ValueError):
                    waiters.remove(future)
                if not waiters and self._waiters.get(key) is waiters:
                    del self._waiters[key]

    def close(self) -> None:
        """Ring no more; the loop is closed."""
        self.core.close()

    def _drain(self) -> None:
        waiters = self._waiters
        for key in self.core.drain():
            for future in waiters.pop(key, ()):
                if not future.done():
                    future.set_result(None)

    def _pump(self) -> None:
        while self.core.wait():
            loop = self._loop()
            if loop is None or loop.is_closed():
                return
            drained = threading.Event()

            def drain(drained: threading.Event = drained) -> None:
                self._drain()
                drained.set()

            try:
                loop.call_soon_threadsafe(drain)
            except RuntimeError:
                return
            del loop
            drained.wait()


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


_asyncio_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncioHub] = WeakKeyDictionary()
_trio_hub: Any = None
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
    loop = asyncio.get_running_loop()
    hub = _asyncio_hubs.get(loop)
    return hub if hub is not None else _new_asyncio_hub(loop)


def in_trio() -> bool:
    """Whether a trio task is running."""
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_task()


def _new_asyncio_hub(loop: asyncio.AbstractEventLoop) -> AsyncioHub:
    hub = AsyncioHub(loop)
    with _lock:
        for old in [old for old in _asyncio_hubs if old.is_closed()]:
            _asyncio_hubs.pop(old).close()
        _asyncio_hubs[loop] = hub
    return hub


def _current_trio_hub() -> TrioHub:
    global _trio_hub
    lowlevel = sys.modules["trio"].lowlevel
    if _trio_hub is None:
        _trio_hub = lowlevel.RunVar("llama_batch_hub")
    try:
        hub: TrioHub = _trio_hub.get()
    except LookupError:
        hub = TrioHub()
        _trio_hub.set(hub)
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


async def sleep(seconds: float) -> None:
    """Let others run for a while."""
    library = sys.modules["trio" if in_trio() else "asyncio"]
    await library.sleep(seconds)
