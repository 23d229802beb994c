"""Many prompts, a window of them at a time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from llama_batch import _core
from llama_batch._hub import current_hub, sleep
from llama_batch._progress import Bar
from llama_batch.errors import LlamaBatchError, QueueFullError

if TYPE_CHECKING:
    from llama_batch.generation import Generation
    from llama_batch.types import Completion

T = TypeVar("T")

_BUFFER_PER_SLOT = 8
_BACK_OFF_S = 0.02


class Map(Iterator[T], AsyncIterator[T], Generic[T]):
    """The completions of many prompts, as an iterator and async iterator.

    Prompts are taken as there is room: twice as many run or wait as the engine has slots, and no more are taken while
    too many completions wait to be read. A full queue (because of other callers) is waited for. Dropping it, or
    `close()`, cancels what is under way. One thread or task reads it.

    Example:
        >>> for done in engine.map(prompts, max_tokens=50):
        ...     print(done.text)
    """

    def __init__(
        self,
        submit: Callable[[Any], Generation],
        prompts: Iterable[Any] | AsyncIterable[Any],
        *,
        capacity: tuple[int, int],
        ordered: bool,
        on_error: Literal["raise", "return"],
        progress: bool,
    ) -> None:
        """Made by `Engine.map`.

        Args:
            submit: submits one prompt.
            prompts: the prompts.
            capacity: slots of the engine, and requests that may wait for one (0: any number).
            ordered: give completions in the order of the prompts.
            on_error: "raise" or "return".
            progress: show a progress bar.
        """
        n_parallel, max_queue = capacity
        self._submit = submit
        self._prompts: Iterator[Any] | None = iter(prompts) if isinstance(prompts, Iterable) else None
        self._async_prompts = aiter(prompts) if isinstance(prompts, AsyncIterable) else None
        if self._prompts is None and self._async_prompts is None:
            raise TypeError(f"prompts must be iterable, not {type(prompts).__name__}")
        if on_error not in {"raise", "return"}:
            raise ValueError(f'on_error must be "raise" or "return", not {on_error!r}')
        self._window = 2 * n_parallel if max_queue == 0 else n_parallel + min(n_parallel, max_queue)
        self._buffer = _BUFFER_PER_SLOT * n_parallel
        self._ordered = ordered
        self._raises = on_error == "raise"
        self._bar = Bar(len(prompts) if isinstance(prompts, Sized) else None) if progress else None
        self._key = _core.new_key()
        self._hub = _core.Hub(False)
        self._exhausted = False
        self._refused: list[tuple[int, Any]] = []
        self._running: dict[int, tuple[Any, Generation]] = {}
        self._ready: dict[int, Completion | LlamaBatchError] = {}
        self._n_taken = 0
        self._next = 0

    def __iter__(self) -> Self:
        """Read the completions."""
        return self

    def __next__(self) -> T:
        """The next completion."""
        if self._prompts is None:
            raise TypeError("these prompts come from an async iterable: read them with `async for`")
        while True:
            while self._has_room():
                try:
                    prompt = next(self._prompts, _END)
                except Exception as error:  # noqa: BLE001 - it is raised in its place, after the completions before it
                    self._failure, prompt = error, _END
                self._take(prompt)
            if (item := self._collect()) is not _NONE:
                return item  # type: ignore[return-value]
            if self._is_over():
                raise self._end(StopIteration())
            if not self._running:
                time.sleep(_BACK_OFF_S)
            elif not self._watch(self._hub):
                # In slices, so that Ctrl-C works.
                while not self._hub.wait(0.05):
                    pass
                self._hub.drain()

    def __aiter__(self) -> Self:
        """Read the completions."""
        return self

    async def __anext__(self) -> T:
        """The next completion."""
        hub = current_hub()
        while True:
            while self._has_room():
                try:
                    prompt = await self._next_prompt()
                except Exception as error:  # noqa: BLE001 - it is raised in its place, after the completions before it
                    self._failure, prompt = error, _END
                self._take(prompt)
            if (item := self._collect()) is not _NONE:
                return item  # type: ignore[return-value]
            if self._is_over():
                raise self._end(StopAsyncIteration())
            if not self._running:
                await sleep(_BACK_OFF_S)
            else:
                await hub.wait(self._key, lambda: self._watch(hub.core))

    def close(self) -> None:
        """Cancel what is under way, and take no more prompts."""
        self._exhausted = True
        for _, generation in self._running.values():
            generation.cancel()
        self._running.clear()
        self._ready.clear()
        self._refused.clear()
        if self._bar is not None:
            self._bar.close()

    async def aclose(self) -> None:
        """Cancel what is under way, and take no more prompts."""
        self.close()

    def _has_room(self) -> bool:
        """Whether another prompt may be taken; those that were refused go first."""
        while self._refused and len(self._running) < self._window:
            if self._running and not self._may_retry:
                return False
            self._send(*self._refused.pop(0))
            self._may_retry = False
        return (
            not self._exhausted
            and not self._refused
            and len(self._running) < self._window
            and len(self._running) + len(self._ready) < self._buffer
        )

    _may_retry = False
    _failure: Exception | None = None
    """What the prompts raised, until it is its turn."""

    def _take(self, prompt: Any) -> None:
        if prompt is _END:
            self._exhausted = True
            return
        self._n_taken += 1
        self._send(self._n_taken - 1, prompt)

    def _end(self, stop: Exception) -> Exception:
        """What ends the iteration: the failure of the prompts, once, or their end."""
        failure, self._failure = self._failure, None
        return failure or stop

    def _send(self, place: int, prompt: Any) -> None:
        try:
            self._running[place] = (prompt, self._submit(prompt))
        except BaseException:
            self.close()
            raise

    async def _next_prompt(self) -> Any:
        if self._async_prompts is not None:
            return await anext(self._async_prompts, _END)
        return _END if self._prompts is None else next(self._prompts, _END)

    def _is_over(self) -> bool:
        over = self._exhausted and not self._running and not self._refused
        if over and self._bar is not None:
            self._bar.close()
        return over

    def _watch(self, hub: _core.Hub) -> bool:
        """Have the end of any request marked; whether one has ended already."""
        ended = [generation.watch(hub, self._key) for _, generation in self._running.values()]
        return any(ended)

    def _collect(self) -> Completion | LlamaBatchError | object:
        """Take what has ended off the window, and give the next completion, if it is there."""
        for place in [place for place, (_, generation) in self._running.items() if generation.done()]:
            prompt, generation = self._running.pop(place)
            outcome = generation.outcome()
            self._may_retry = True
            if isinstance(outcome, QueueFullError):
                self._refused.append((place, prompt))
                self._may_retry = False
                continue
            self._ready[place] = outcome
            if self._bar is not None:
                self._bar.advance(outcome)
        place = self._next if self._ordered else next(iter(self._ready), -1)
        if place not in self._ready:
            return _NONE
        self._next += 1
        outcome = self._ready.pop(place)
        if self._raises and isinstance(outcome, LlamaBatchError):
            self.close()
            raise outcome
        return outcome


_END = object()
_NONE = object()
