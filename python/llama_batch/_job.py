"""What callers hold of a request, whatever comes of it: a coroutine, and a handle."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from llama_batch._hub import current_hub
from llama_batch._unique import Unique

if TYPE_CHECKING:
    from types import TracebackType

    from llama_batch import _core
    from llama_batch.errors import LlamaBatchError

T = TypeVar("T")


class Job(Unique, Coroutine[Any, Any, T], Generic[T]):
    """A submitted request. It runs whether anybody waits or not; dropping the last reference cancels it."""

    __slots__ = ("__weakref__", "_drivers", "_engine", "_ticket")

    def __init__(self, engine: object, ticket: _core.Ticket) -> None:
        """Hold a submitted request.

        Args:
            engine: stays open while somebody holds a request that runs.
            ticket: the request.
        """
        self._engine: object = engine
        self._ticket = ticket
        self._drivers: dict[Any, Coroutine[Any, Any, T]] = {}

    @property
    def request_id(self) -> int:
        """The number of the request: ascending, never used twice in an engine."""
        return self._ticket.id

    def done(self) -> bool:
        """Whether the request has ended, however."""
        return self._ticket.done()

    def cancelled(self) -> bool:
        """Whether the request was cancelled."""
        return self._ticket.cancelled()

    def cancel(self) -> None:
        """Cancel the request. Returns at once; one that has ended stays as it is."""
        self._ticket.cancel()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end. Works inside a running event loop too, which it blocks.

        Args:
            timeout: how long to wait, in seconds; None waits for as long as it takes. It only ends the wait: the
                request goes on, and its own limits are options of `generate`.

        Returns:
            What came of it.

        Raises:
            TimeoutError: it has not ended in time.
            LlamaBatchError: it ended with this error.

        Example:
            >>> print(engine.generate("Once upon a time").result())
        """
        ticket = self._ticket
        ticket.enter()
        try:
            if not ticket.wait_end(timeout):
                raise TimeoutError(f"request {ticket.id} is not done after {timeout} s")
        finally:
            ticket.leave(False)
        return self._settled()

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the end; cancelling the last task that waits cancels the request."""
        return self._wait().__await__()

    def send(self, value: Any) -> Any:
        """Step the coroutine: the protocol by which a task drives it."""
        driver = current_task()
        coroutine = self._drivers.get(driver)
        if coroutine is None:
            coroutine = self._drivers[driver] = self._wait()
        try:
            return coroutine.send(value)
        except BaseException:
            self._drivers.pop(driver, None)
            raise

    def throw(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> Any:
        """Raise inside the coroutine: the protocol by which a task is cancelled."""
        error = typ if isinstance(typ, BaseException) else val if isinstance(val, BaseException) else typ()
        driver = current_task()
        coroutine = self._drivers.get(driver)
        if coroutine is None:
            # A task that is cancelled before its first step: it waited all the same.
            if not self._ticket.is_waited_for():
                self.cancel()
            raise error.with_traceback(tb)
        try:
            return coroutine.throw(error)
        except BaseException:
            self._drivers.pop(driver, None)
            raise

    def close(self) -> None:
        """Cancel the request; for `contextlib.closing`. Who waits hears of it."""
        # Tasks that drive it end by the cancellation: a driver that is closed under its task never wakes it.
        self.cancel()

    async def aclose(self) -> None:
        """Cancel the request; for `contextlib.aclosing`."""
        self.cancel()

    def __repr__(self) -> str:
        """The request, and whether it runs."""
        state = "cancelled" if self.cancelled() else "done" if self.done() else "running"
        return f"<{type(self).__name__} {self.request_id} {state}>"

    async def _wait(self) -> T:
        ticket = self._ticket
        if not ticket.done():
            hub = current_hub()
            with Waiting(ticket):
                while not ticket.done():
                    await hub.wait(ticket.key, lambda: ticket.watch(hub.core, ticket.key, True))
        return self._settled()

    def outcome(self) -> T | LlamaBatchError:
        """How the request ended: what came of it, or its error, given and not raised.

        Returns:
            What came of it, or the error.

        Raises:
            RuntimeError: it has not ended.

        Example:
            >>> [g.outcome() for g in generations if g.done()]
        """
        outcome: T | LlamaBatchError | None = self._ticket.outcome()  # type: ignore[assignment]
        if outcome is None:
            raise RuntimeError(f"request {self.request_id} has not ended")
        self._engine = None
        return outcome

    def watch(self, hub: _core.Hub, key: int) -> bool:
        """Have a key marked at a hub when the request ends; whether it has ended. For `Engine.map`."""
        return self._ticket.watch(hub, key, True)

    def _settled(self) -> T:
        outcome = self.outcome()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class Waiting:
    """The time in which a task waits; if it is cancelled meanwhile and nobody else waits, so is the request."""

    __slots__ = ("_ticket",)

    def __init__(self, ticket: _core.Ticket) -> None:
        self._ticket = ticket

    def __enter__(self) -> None:
        self._ticket.enter()

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        self._ticket.leave(exc_type is not None)


def current_task() -> Any:
    """The running asyncio task, if there is one."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    loop = asyncio._get_running_loop()
    return None if loop is None else asyncio.current_task(loop)
