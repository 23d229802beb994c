"""One request, as its caller holds it: a coroutine, an iterator, and a handle."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self

from llama_batch._generic import T
from llama_batch._hub import current_hub, in_trio
from llama_batch._structured import with_parser
from llama_batch._unique import Unique
from llama_batch.types import Chunk, Completion

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from types import TracebackType

    from llama_batch import _core
    from llama_batch._structured import Parser
    from llama_batch.deltas import Deltas
    from llama_batch.errors import LlamaBatchError


class Generation(Unique, Coroutine[Any, Any, Completion[T]], Iterator[Chunk], AsyncIterator[Chunk], Generic[T]):
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

    __slots__ = ("__weakref__", "_drivers", "_engine", "_parser", "_ticket")

    def __init__(self, engine: object, ticket: _core.Ticket, parser: Parser | None = None) -> None:
        """Hold a submitted request. Made by `Engine.generate`, `Engine.stream` and `Engine.chat`.

        Args:
            engine: stays open while somebody holds a request that runs.
            ticket: the request.
            parser: turns the answer into a value.
        """
        self._engine: object = engine
        self._ticket = ticket
        self._parser = parser
        self._drivers: dict[Any, Coroutine[Any, Any, Completion[T]]] = {}

    @property
    def request_id(self) -> int:
        """The number of the request: ascending, never used twice in an engine."""
        return self._ticket.id

    @property
    def syntax(self) -> str | None:
        """How the answer to a conversation is read, for `llama_batch._reading`; None before its prompt is made."""
        return self._ticket.syntax

    def deltas(self) -> Deltas:
        """Follow along an answer taken apart: what is said, what is thought, which functions are called.

        Returns:
            An iterator and async iterator of `ChatDelta`, which takes the place of iterating over this.

        Example:
            >>> for delta in engine.chat("What is the weather in Rome?", tools=tools).deltas():
            ...     print(delta.content, end="", flush=True)
        """
        from llama_batch.deltas import Deltas

        return Deltas(self)

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

    def result(self, timeout: float | None = None) -> Completion[T]:
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
        ticket = self._ticket
        ticket.enter()
        try:
            if not ticket.wait_end(timeout):
                raise TimeoutError(f"request {ticket.id} is not done after {timeout} s")
        finally:
            ticket.leave(False)
        return self._settled()

    def __await__(self) -> Generator[Any, None, Completion[T]]:
        """Wait for the completion; cancelling the last task that waits cancels the request."""
        return self._wait().__await__()

    # Typed as less than it is: a class whose __iter__ gave Self would be a Generator to type checkers, and the type of
    # create_task(generation) could not be told.
    def __iter__(self) -> Iterator[Chunk]:  # noqa: PYI034
        """Follow along; chunks come as they are made."""
        return self

    def __next__(self) -> Chunk:
        """The next chunk."""
        task = _current_task()
        if task is not None and task.get_coro() is self:
            # asyncio steps a coroutine that is an iterator by `next`: this is no reader, but `create_task(generation)`.
            return self.send(None)  # type: ignore[no-any-return]
        ticket = self._ticket
        while (chunk := ticket.take()) is None:
            ticket.enter()
            try:
                ticket.wait(None)
            finally:
                ticket.leave(False)
        if chunk is False:
            raise StopIteration
        return chunk

    def __aiter__(self) -> Self:
        """Follow along; chunks come as they are made."""
        return self

    def __anext__(self) -> Awaitable[Chunk]:
        """The next chunk."""
        if in_trio():
            return self._next_chunk()
        return self._ticket.next_chunk()

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
            if not self._ticket.is_waited_for():
                self.cancel()
            raise error.with_traceback(tb)
        try:
            return coroutine.throw(error)
        except BaseException:
            self._drivers.pop(driver, None)
            raise

    def close(self) -> None:
        """Cancel the request; for `contextlib.closing`. Who waits gets the completion."""
        # Tasks that drive it end by the cancellation: a driver that is closed under its task never wakes it.
        self.cancel()

    async def aclose(self) -> None:
        """Cancel the request; for `contextlib.aclosing`."""
        self.cancel()

    def __repr__(self) -> str:
        """The request, and whether it runs."""
        state = "cancelled" if self.cancelled() else "done" if self.done() else "running"
        return f"<Generation {self.request_id} {state}>"

    async def _wait(self) -> Completion[T]:
        ticket = self._ticket
        if not ticket.done():
            hub = current_hub()
            with _Waiting(ticket):
                while not ticket.done():
                    await hub.wait(ticket.key, lambda: ticket.watch(hub.core, ticket.key, True))
        return self._settled()

    async def _next_chunk(self) -> Chunk:
        """The next chunk, in any kind of loop."""
        ticket = self._ticket
        if (chunk := ticket.take()) is None:
            hub = current_hub()
            with _Waiting(ticket):
                while (chunk := ticket.take()) is None:
                    await hub.wait(ticket.key, lambda: ticket.watch(hub.core, ticket.key, False))
        if chunk is False:
            raise StopAsyncIteration
        return chunk

    def outcome(self) -> Completion[T] | LlamaBatchError:
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
        if self._parser is not None and isinstance(outcome, Completion):
            return with_parser(outcome, self._parser)
        return outcome

    def watch(self, hub: _core.Hub, key: int) -> bool:
        """Have a key marked at a hub when the request ends; whether it has ended. For `Engine.map`."""
        return self._ticket.watch(hub, key, True)

    def _settled(self) -> Completion[T]:
        outcome = self.outcome()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class _Waiting:
    """The time in which a task waits; if it is cancelled meanwhile and nobody else waits, so is the request."""

    __slots__ = ("_ticket",)

    def __init__(self, ticket: _core.Ticket) -> None:
        self._ticket = ticket

    def __enter__(self) -> None:
        self._ticket.enter()

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        self._ticket.leave(exc_type is not None)


def _current_task() -> Any:
    """The running asyncio task, if there is one."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    loop = asyncio._get_running_loop()
    return None if loop is None else asyncio.current_task(loop)
