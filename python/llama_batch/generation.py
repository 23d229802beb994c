"""One request, as its caller holds it: a coroutine, an iterator, and a handle."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Literal, Self

from llama_batch._hub import current_hub, new_key
from llama_batch.types import Chunk, Completion

if TYPE_CHECKING:
    from types import TracebackType

    from llama_batch import _core
    from llama_batch.errors import LlamaBatchError


class Generation(Coroutine[Any, Any, Completion], Iterator[Chunk], AsyncIterator[Chunk]):
    """A submitted request. It runs whether anybody waits or not; dropping the last reference cancels it.

    Wait for the whole with `result()` or `await`, or follow along with `for` or `async for`. All of it works from any
    thread and from several event loops at once, and may be mixed: each chunk goes to whoever takes it first, and the
    completion has all of them.

    An error comes from `result()` and `await` each time, and once from iteration, after the chunks before it. See
    `llama_batch.errors`.

    Example:
        >>> task = asyncio.create_task(engine.generate("Once upon a time"))
        >>> done = await task
    """

    __slots__ = ("__weakref__", "_drivers", "_engine", "_index", "_key", "_lock", "_n_waiting", "_raised", "_ticket")

    def __init__(self, engine: object, ticket: _core.Ticket) -> None:
        """Hold a submitted request. Made by `Engine.generate`, `Engine.stream` and `Engine.chat`.

        Args:
            engine: stays open while somebody holds a request that runs.
            ticket: the request.
        """
        self._engine: object = engine
        self._ticket = ticket
        self._key = new_key()
        self._index = 0
        self._raised = False
        self._lock = threading.Lock()
        self._n_waiting = 0
        self._drivers: dict[Any, Coroutine[Any, Any, Completion]] = {}

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
        """Cancel the request. Its completion keeps the text so far, with `finish_reason` "cancelled".

        Returns at once; one that has ended stays as it is. Waiters get the completion.
        """
        self._ticket.cancel()

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the completion. Works inside a running event loop too, which it blocks.

        Args:
            timeout: how long to wait, in seconds; None waits for as long as it takes. It only ends the wait: the
                request goes on, and its own limits are options of `generate`.

        Returns:
            The completion.

        Raises:
            TimeoutError: it has not ended in time.
            LlamaBatchError: it ended with this error.

        Example:
            >>> print(engine.generate("Once upon a time").result())
        """
        self._enter()
        try:
            if not self._ticket.wait_end(timeout):
                raise TimeoutError(f"request {self.request_id} is not done after {timeout} s")
        finally:
            self._leave()
        return self._settled()

    def __await__(self) -> Generator[Any, None, Completion]:
        """Wait for the completion; cancelling the last task that waits cancels the request."""
        return self._wait().__await__()

    def __iter__(self) -> Self:
        """Follow along; chunks come as they are made."""
        return self

    def __next__(self) -> Chunk:
        """The next chunk."""
        task = _current_task()
        if task is not None and task.get_coro() is self:
            # asyncio steps a coroutine that is an iterator by `next`: this is no reader, but `create_task(generation)`.
            return self.send(None)  # type: ignore[no-any-return]
        while (chunk := self._take()) is None:
            self._enter()
            try:
                self._ticket.wait(None)
            finally:
                self._leave()
        if chunk is False:
            raise StopIteration
        return chunk

    def __aiter__(self) -> Self:
        """Follow along; chunks come as they are made."""
        return self

    async def __anext__(self) -> Chunk:
        """The next chunk."""
        chunk = self._take()
        if chunk is None:
            hub = current_hub()
            self._enter()
            try:
                while (chunk := self._take()) is None:
                    await hub.wait(self._key, lambda: self._ticket.watch(hub.core, self._key, False))
            except BaseException:
                self._cancel_if_last()
                raise
            finally:
                self._leave()
        if chunk is False:
            raise StopAsyncIteration
        return chunk

    def send(self, value: Any) -> Any:
        """Step the coroutine: the protocol by which a task drives it."""
        driver = _current_task()
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
        driver = _current_task()
        coroutine = self._drivers.get(driver)
        if coroutine is None:
            # A task that is cancelled before its first step: it waited all the same.
            if not self._n_waiting:
                self.cancel()
            raise error.with_traceback(tb)
        try:
            return coroutine.throw(error)
        except BaseException:
            self._drivers.pop(driver, None)
            raise

    def close(self) -> None:
        """Cancel the request and forget who waits; for `contextlib.closing`."""
        drivers, self._drivers = self._drivers, {}
        for coroutine in drivers.values():
            coroutine.close()
        self.cancel()

    async def aclose(self) -> None:
        """Cancel the request; for `contextlib.aclosing`."""
        self.cancel()

    def __repr__(self) -> str:
        """The request, and whether it runs."""
        state = "cancelled" if self.cancelled() else "done" if self.done() else "running"
        return f"<Generation {self.request_id} {state}>"

    async def _wait(self) -> Completion:
        if not self._ticket.done():
            hub = current_hub()
            self._enter()
            try:
                while not self._ticket.done():
                    await hub.wait(self._key, lambda: self._ticket.watch(hub.core, self._key, True))
            except BaseException:
                self._cancel_if_last()
                raise
            finally:
                self._leave()
        return self._settled()

    def outcome(self) -> Completion | LlamaBatchError:
        """How the request ended: its completion, or its error, given and not raised.

        Returns:
            The completion or the error.

        Raises:
            RuntimeError: it has not ended.

        Example:
            >>> [g.outcome() for g in generations if g.done()]
        """
        outcome = self._ticket.outcome()
        if outcome is None:
            raise RuntimeError(f"request {self.request_id} has not ended")
        self._engine = None
        return outcome

    def watch(self, hub: _core.Hub, key: int) -> bool:
        """Have a key marked at a hub when the request ends; whether it has ended. For `Engine.map`."""
        return self._ticket.watch(hub, key, True)

    def _take(self) -> Chunk | Literal[False] | None:
        """The next chunk; None if it is not there yet, False at the end. The error of a failed request, once."""
        taken = self._ticket.take()
        if isinstance(taken, tuple):
            text, token_ids = taken
            index = self._index
            self._index = index + 1
            return Chunk(text, index, token_ids)
        if taken is False and not self._raised:
            self._raised = True
            self._settled()
        return taken

    def _settled(self) -> Completion:
        outcome = self.outcome()
        if isinstance(outcome, BaseException):
            self._raised = True
            raise outcome
        return outcome

    def _enter(self) -> None:
        with self._lock:
            self._n_waiting += 1

    def _leave(self) -> None:
        with self._lock:
            self._n_waiting -= 1

    def _cancel_if_last(self) -> None:
        if self._n_waiting == 1:
            self.cancel()


def _current_task() -> Any:
    """The running asyncio task, if there is one."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    loop = asyncio._get_running_loop()
    return None if loop is None else asyncio.current_task(loop)
