"""One request, as its caller holds it: a coroutine, an iterator, and a handle."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Generic, Self

from llama_batch._generic import T
from llama_batch._hub import current_hub, in_trio
from llama_batch._job import Job, Waiting, current_task
from llama_batch._structured import with_parser
from llama_batch.types import Chunk, Completion

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from llama_batch import _core
    from llama_batch._structured import Parser
    from llama_batch.deltas import Deltas
    from llama_batch.errors import LlamaBatchError


class Generation(Job[Completion[T]], Iterator[Chunk], AsyncIterator[Chunk], Generic[T]):
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

    __slots__ = ("_parser",)

    def __init__(self, engine: object, ticket: _core.Ticket, parser: Parser | None = None) -> None:
        """Hold a submitted request. Made by `Engine.generate`, `Engine.stream` and `Engine.chat`.

        Args:
            engine: stays open while somebody holds a request that runs.
            ticket: the request.
            parser: turns the answer into a value.
        """
        super().__init__(engine, ticket)
        self._parser = parser

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

    def cancel(self) -> None:
        """Cancel the request. Its completion keeps the text so far, with `finish_reason` "cancelled".

        Returns at once; one that has ended stays as it is. Waiters get the completion.
        """
        super().cancel()

    # Typed as less than it is: a class whose __iter__ gave Self would be a Generator to type checkers, and the type of
    # create_task(generation) could not be told.
    def __iter__(self) -> Iterator[Chunk]:  # noqa: PYI034
        """Follow along; chunks come as they are made."""
        return self

    def __next__(self) -> Chunk:
        """The next chunk."""
        task = current_task()
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

    async def _next_chunk(self) -> Chunk:
        """The next chunk, in any kind of loop."""
        ticket = self._ticket
        if (chunk := ticket.take()) is None:
            hub = current_hub()
            with Waiting(ticket):
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
        outcome = super().outcome()
        if self._parser is not None and isinstance(outcome, Completion):
            return with_parser(outcome, self._parser)
        return outcome
