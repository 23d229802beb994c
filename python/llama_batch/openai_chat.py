"""Answers to conversations in OpenAI's shapes: `Engine.chat_completion` and `Engine.stream_chat_completion`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Self

from llama_batch import openai_shapes as shapes
from llama_batch._closing import Closing
from llama_batch._job import Job
from llama_batch._unique import Unique
from llama_batch.errors import LlamaBatchError

if TYPE_CHECKING:
    from llama_batch import _core
    from llama_batch.generation import Generation
    from llama_batch.messages import ChatDelta
    from llama_batch.types import Completion


class PendingChatCompletion(Job[dict[str, Any]]):
    """A submitted request whose answer is a `chat.completion`, with `usage` and llama-server's `timings`.

    Wait with `result()` or `await`, from any thread and several event loops, any number of times; all get equal dicts.
    Dropping the last reference cancels it; one that was cancelled has the text so far, with `finish_reason` "abort".

    Example:
        >>> made = await engine.chat_completion("Why is the sky blue?")
        >>> ChatCompletion.model_validate(made)  # of openai.types.chat
    """

    __slots__ = ("_head",)

    def __init__(self, engine: object, ticket: _core.Ticket, model: str) -> None:
        """Wait for a conversation's answer. Made by `Engine.chat_completion`.

        Args:
            engine: stays open while somebody holds a request that runs.
            ticket: the request.
            model: the name of the model in the answer.
        """
        super().__init__(engine, ticket)
        self._head = shapes.Head.new("chatcmpl", model)

    def outcome(self) -> dict[str, Any] | LlamaBatchError:
        """How the request ended: the `chat.completion`, or its error, given and not raised."""
        outcome: Any = super().outcome()
        return outcome if isinstance(outcome, LlamaBatchError) else shapes.chat_completion(self._head, outcome)


class ChatCompletionStream(Unique, Closing, Iterator[dict[str, Any]], AsyncIterator[dict[str, Any]]):
    """The `chat.completion.chunk`s of an answer, for `for` and `async for`.

    Each choice begins with a chunk that has its role and ends with one that has its `finish_reason`. An error is raised
    once, after the chunks before it. Leaving `with`, or dropping this, cancels the request.

    Example:
        >>> with engine.stream_chat_completion("Tell me a story", include_usage=True) as chunks:
        ...     for chunk in chunks:
        ...         parsed = ChatCompletionChunk.model_validate(chunk)  # of openai.types.chat
    """

    def __init__(self, generation: Generation[Any], model: str, *, include_usage: bool = False) -> None:
        """Follow a generation. Made by `Engine.stream_chat_completion`.

        Args:
            generation: the request; nobody else reads from it.
            model: the name of the model in the chunks.
            include_usage: end with a chunk that has `usage` and no choices.
        """
        self._generation, self._deltas = generation, generation.deltas()
        self._head = shapes.Head.new("chatcmpl", model)
        self._include_usage = include_usage
        self._begun: set[int] = set()
        self._ready: deque[dict[str, Any]] = deque()
        self._is_over = False

    @property
    def request_id(self) -> int:
        """The number of the request, for `Engine.cancel`."""
        return self._generation.request_id

    def cancel(self) -> None:
        """Cancel the request; the stream ends with `finish_reason` "abort"."""
        self._generation.cancel()

    def __iter__(self) -> Self:
        """The chunks."""
        return self

    def __aiter__(self) -> Self:
        """The chunks."""
        return self

    def __next__(self) -> dict[str, Any]:
        """The next chunk."""
        while not self._ready:
            if self._is_over:
                raise StopIteration
            try:
                piece = next(self._deltas, None)
            except LlamaBatchError:
                self._is_over = True
                raise
            if piece is not None:
                self._add(piece)
            else:
                self._is_over = True
                self._end(self._generation.result())
        return self._ready.popleft()

    async def __anext__(self) -> dict[str, Any]:
        """The next chunk."""
        while not self._ready:
            if self._is_over:
                raise StopAsyncIteration
            try:
                piece = await anext(self._deltas, None)
            except LlamaBatchError:
                self._is_over = True
                raise
            if piece is not None:
                self._add(piece)
            else:
                self._is_over = True
                self._end(await self._generation)
        return self._ready.popleft()

    def close(self) -> None:
        """Cancel the request, if it still runs."""
        self._deltas.close()

    async def aclose(self) -> None:
        """Cancel the request, if it still runs."""
        self._deltas.close()

    def _add(self, piece: ChatDelta) -> None:
        if piece.choice not in self._begun:
            self._begun.add(piece.choice)
            self._ready.append(shapes.chat_beginning(self._head, piece.choice))
        delta = shapes.chat_delta(piece)
        if delta or piece.logprobs is not None:
            logprobs = shapes.chat_logprobs(piece.logprobs)
            self._ready.append(shapes.chat_chunk(self._head, piece.choice, delta, logprobs=logprobs))

    def _end(self, done: Completion[Any]) -> None:
        self._ready.extend(shapes.chat_ends(self._head, done, self._begun, include_usage=self._include_usage))
