"""An answer to a conversation as it comes, taken apart: what is said, what is thought, which functions are called."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Self

from llama_batch._closing import Closing
from llama_batch._reading import Reader, reader
from llama_batch.messages import ChatDelta

if TYPE_CHECKING:
    from llama_batch.generation import Generation
    from llama_batch.types import Chunk


class Deltas(Closing, Iterator[ChatDelta], AsyncIterator[ChatDelta]):
    """The deltas of an answer, for `for` and `async for`. Made by `Generation.deltas`.

    Leaving the loop, or dropping this and the generation, cancels the request.
    """

    def __init__(self, generation: Generation[Any]) -> None:
        """Read a generation's chunks.

        Args:
            generation: nobody else reads from it.
        """
        self._generation = generation
        self._readers: dict[int, Reader] = {}
        self._rest: deque[ChatDelta] | None = None

    def __iter__(self) -> Self:
        """The deltas."""
        return self

    def __aiter__(self) -> Self:
        """The deltas."""
        return self

    def __next__(self) -> ChatDelta:
        """The next delta; several chunks may make one."""
        while self._rest is None:
            try:
                chunk = next(self._generation)
            except StopIteration:
                self._finish()
                break
            if (delta := self._feed(chunk)) is not None:
                return delta
        if not self._rest:
            raise StopIteration
        return self._rest.popleft()

    async def __anext__(self) -> ChatDelta:
        """The next delta; several chunks may make one."""
        while self._rest is None:
            try:
                chunk = await anext(self._generation)
            except StopAsyncIteration:
                self._finish()
                break
            if (delta := self._feed(chunk)) is not None:
                return delta
        if not self._rest:
            raise StopAsyncIteration
        return self._rest.popleft()

    def close(self) -> None:
        """Cancel the request."""
        self._generation.cancel()

    async def aclose(self) -> None:
        """Cancel the request."""
        self._generation.cancel()

    def _feed(self, chunk: Chunk) -> ChatDelta | None:
        known = self._readers.get(chunk.choice)
        if known is None:
            known = self._readers[chunk.choice] = reader(self._generation.syntax, chunk.choice)
        added = known.feed(str(chunk))
        if not added and chunk.logprobs is None and not chunk.token_ids:
            return None
        return ChatDelta(chunk.choice, added.content, added.reasoning, added.calls, chunk.token_ids, chunk.logprobs)

    def _finish(self) -> None:
        ends = ((choice, known.finish()) for choice, known in sorted(self._readers.items()))
        self._rest = deque(
            ChatDelta(choice, added.content, added.reasoning, added.calls) for choice, added in ends if added
        )
