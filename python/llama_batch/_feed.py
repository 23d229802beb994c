"""Prompts on their way into `Engine.map`, one by one."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from llama_batch._hub import spawn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from llama_batch import _core
    from llama_batch._hub import Hub

END: Final = object()
"""There are no more prompts."""

NOT_YET: Final = object()
"""The next prompt is on its way."""


class Feed:
    """An iterable of prompts. It blocks while the next one is being made."""

    failure: Exception | None = None
    """What the iterable raised instead of a prompt."""

    def __init__(self, prompts: Iterable[Any]) -> None:
        self._prompts: Iterator[Any] = iter(prompts)

    def poll(self, hub: Hub | None) -> Any:
        """The next prompt, or END."""
        del hub
        try:
            return next(self._prompts, END)
        except Exception as error:  # noqa: BLE001 - `map` raises it in its place
            self.failure = error
            return END

    def has_come(self) -> bool:
        """Whether a prompt that was asked for can be taken."""
        return False

    def close(self) -> None:
        """No more are wanted."""


class AsyncFeed(Feed):
    """An async iterable of prompts, each fetched by a task of its own: nobody who waits for an answer waits for it.

    The task holds no reference to the `Map`, which can be dropped meanwhile.
    """

    def __init__(self, prompts: AsyncIterable[Any], key: int) -> None:
        self._async_prompts = aiter(prompts)
        self._key = key
        self._fetched: list[Any] = []
        self._cancel: Callable[[], object] | None = None

    def poll(self, hub: Hub | None) -> Any:
        """The next prompt, END, or NOT_YET: then the key is marked at the hub when it is there."""
        if hub is None:
            raise TypeError("these prompts come from an async iterable: read them with `async for`")
        if self._fetched:
            prompt, self._cancel = self._fetched.pop(), None
            if isinstance(prompt, _Raised):
                self.failure, prompt = prompt.error, END
            return prompt
        if self._cancel is None:
            self._cancel = spawn(_fetch(self._async_prompts, self._fetched, hub.core, self._key))
        return NOT_YET

    def has_come(self) -> bool:
        """Whether a prompt that was asked for can be taken."""
        return bool(self._fetched)

    def close(self) -> None:
        """No more are wanted."""
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            with suppress(RuntimeError):  # a loop that is closed has nothing left to cancel
                cancel()

    __del__ = close


class _Raised:
    def __init__(self, error: Exception) -> None:
        self.error = error


async def _fetch(prompts: AsyncIterator[Any], fetched: list[Any], hub: _core.Hub, key: int) -> None:
    try:
        fetched.append(await anext(prompts, END))
    except Exception as error:  # noqa: BLE001 - `map` raises it in its place
        fetched.append(_Raised(error))
    finally:
        hub.mark(key)


def feed(prompts: Any, key: int) -> Feed:
    """What prompts come from.

    Args:
        prompts: an iterable or async iterable.
        key: marked when an async one has a prompt.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(prompts, Iterable):
        return Feed(prompts)
    if isinstance(prompts, AsyncIterable):
        return AsyncFeed(prompts, key)
    raise TypeError(f"prompts must be iterable, not {type(prompts).__name__}")
