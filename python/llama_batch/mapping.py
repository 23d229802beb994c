"""Many prompts, a window of them at a time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sized
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from llama_batch import _core
from llama_batch._feed import END, NOT_YET, feed
from llama_batch._hub import current_hub, sleep
from llama_batch._progress import Bar
from llama_batch._unique import Unique
from llama_batch.errors import LlamaBatchError, QueueFullError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable

    from llama_batch._hub import Hub
    from llama_batch.generation import Generation
    from llama_batch.types import Completion

T = TypeVar("T")

_BUFFER_PER_SLOT = 8
_BACK_OFF_S = 0.02


class Map(Unique, Iterator[T], AsyncIterator[T], Generic[T]):
    """The completions of many prompts, as an iterator and async iterator.

    Prompts are taken as there is room: twice as many run or wait as the engine has slots, and no more are taken while
    too many completions wait to be read. A completion that is there is given before another prompt is asked for, and
    no completion waits for a prompt of an async iterable. A full queue (because of other callers) is waited for.
    Dropping it, or `close()`, cancels what is under way. One thread or task reads it.

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
        self._key = _core.new_key()
        self._feed = feed(prompts, self._key)
        if on_error not in {"raise", "return"}:
            raise ValueError(f'on_error must be "raise" or "return", not {on_error!r}')
        self._window = 2 * n_parallel if max_queue == 0 else n_parallel + min(n_parallel, max_queue)
        self._buffer = _BUFFER_PER_SLOT * n_parallel
        self._ordered = ordered
        self._raises = on_error == "raise"
        self._bar = Bar(len(prompts) if isinstance(prompts, Sized) else None) if progress else None
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
        while (item := self._step(None)) is _NONE:
            if not self._running:
                time.sleep(_BACK_OFF_S)
            elif not self._watch(self._hub):
                # In slices, so that Ctrl-C works.
                while not self._hub.wait(0.05):
                    pass
                self._hub.drain()
        if item is _OVER:
            raise StopIteration
        return item  # type: ignore[no-any-return]

    def __aiter__(self) -> Self:
        """Read the completions."""
        return self

    async def __anext__(self) -> T:
        """The next completion."""
        hub = current_hub()
        while (item := self._step(hub)) is _NONE:
            if self._running or self._awaits_prompt:
                await hub.wait(self._key, lambda: self._watch(hub.core))
            else:
                await sleep(_BACK_OFF_S)
        if item is _OVER:
            raise StopAsyncIteration
        return item  # type: ignore[no-any-return]

    def close(self) -> None:
        """Cancel what is under way, and take no more prompts."""
        self._exhausted = True
        self._feed.close()
        for _, generation in self._running.values():
            generation.cancel()
        self._running.clear()
        self._ready.clear()
        self._refused.clear()
        if self._bar is not None:
            self._bar.close()

    async def aclose(self) -> None:
        """Cancel what is under way, and take no more prompts; when it returns, nothing of an async iterable runs."""
        self.close()
        await self._feed.ended()

    def _retry(self) -> None:
        """Submit again what a full queue refused: all that fits if nothing runs, one for each that has ended else."""
        while self._refused and len(self._running) < self._window and (self._may_retry or not self._running):
            self._send(*self._refused.pop(0))
            self._may_retry = False

    def _has_room(self) -> bool:
        """Whether another prompt may be taken; those that were refused go first."""
        return (
            not self._exhausted
            and not self._refused
            and len(self._running) < self._window
            and len(self._running) + len(self._ready) < self._buffer
        )

    _may_retry = False
    _awaits_prompt = False

    def _step(self, hub: Hub | None) -> Any:
        """The next completion; _NONE while it is under way, _OVER behind the last. Submits what there is room for."""
        self._retry()
        self._awaits_prompt = False
        while True:
            if (item := self._collect()) is not _NONE:
                return item
            if not self._has_room():
                break
            prompt = self._feed.poll(hub)
            self._awaits_prompt = prompt is NOT_YET
            if prompt is NOT_YET:
                break
            if prompt is END:
                self._exhausted = True
            else:
                self._n_taken += 1
                self._send(self._n_taken - 1, prompt)
        if not self._is_over():
            return _NONE
        failure, self._feed.failure = self._feed.failure, None
        if failure is not None:
            raise failure
        return _OVER

    def _send(self, place: int, prompt: Any) -> None:
        try:
            self._running[place] = (prompt, self._submit(prompt))
        except BaseException:
            self.close()
            raise

    def _is_over(self) -> bool:
        over = self._exhausted and not self._running and not self._refused
        if over and self._bar is not None:
            self._bar.close()
        return over

    def _watch(self, hub: _core.Hub) -> bool:
        """Have the end of any request marked; whether one has ended, or a prompt come, already."""
        ended = [generation.watch(hub, self._key) for _, generation in self._running.values()]
        return any(ended) or (self._awaits_prompt and self._feed.has_come())

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


_NONE = object()
_OVER = object()
