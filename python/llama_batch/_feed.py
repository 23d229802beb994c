"""Prompts on their way into `Engine.map`, one by one."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any, Final

from llama_batch import _core
from llama_batch._hub import current_hub, spawn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from llama_batch._hub import Hub

END: Final = object()
"""There are no more prompts."""

NOT_YET: Final = object()
"""The next prompt is on its way."""


class Feed:
    """An iterable of prompts. It blocks while the next one is being made."""

    failure: BaseException | None = None
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

    async def ended(self) -> None:
        """Wait until nothing of the iterable runs any more."""


class AsyncFeed(Feed):
    """An async iterable of prompts, driven by a task of its own: nobody who waits for an answer waits for it.

    The task runs the iterable from its beginning to its end, as `async for` would: what is entered between two prompts
    is left in the task that entered it. It holds no reference to the `Map`, which can be dropped meanwhile.
    """

    _drive: _Drive | None = None
    _cancel: Callable[[], None] | None = None

    def __init__(self, prompts: AsyncIterable[Any], key: int) -> None:
        self._iterator = aiter(prompts)
        self._key = key

    def poll(self, hub: Hub | None) -> Any:
        """The next prompt, END, or NOT_YET: then the key is marked at the hub when it is there."""
        if hub is None:
            raise TypeError("these prompts come from an async iterable: read them with `async for`")
        drive = self._drive
        if drive is None:
            drive = self._drive = _Drive(self._iterator, hub, self._key)
            self._cancel = spawn(drive.run(), drive.end)
        if drive.hub is not hub:
            raise RuntimeError("a map over an async iterable is read in one event loop")
        if drive.prompts:
            return drive.prompts.pop()
        if drive.is_over:
            self.failure, drive.failure = drive.failure, None
            return END
        drive.want()
        return NOT_YET

    def has_come(self) -> bool:
        """Whether a prompt that was asked for, or the end, can be taken."""
        return self._drive is not None and (bool(self._drive.prompts) or self._drive.is_over)

    def close(self) -> None:
        """No more are wanted."""
        cancel, self._cancel = self._cancel, None
        if cancel is not None and self._drive is not None and not self._drive.is_over:
            self._drive.is_given_up = True
            cancel()
            self._drive.hub.core.mark(self._key)

    async def ended(self) -> None:
        """Wait until nothing of the iterable runs any more, where that is in this loop."""
        drive, hub = self._drive, current_hub()
        while drive is not None and drive.hub is hub and not drive.is_over:
            await hub.wait(self._key, lambda: drive.is_over)

    __del__ = close


class _Drive:
    """What the task shares with the feed."""

    def __init__(self, iterator: AsyncIterator[Any], hub: Hub, key: int) -> None:
        self.iterator, self.hub, self.key = iterator, hub, key
        self.prompts: list[Any] = []
        self.failure: BaseException | None = None
        self.is_over = False
        self.is_given_up = False
        self._is_wanted = False
        self._wanted = _core.new_key()

    def want(self) -> None:
        """Ask for one more prompt."""
        if not self._is_wanted:
            self._is_wanted = True
            self.hub.core.mark(self._wanted)

    async def run(self) -> None:
        """Fetch a prompt each time that one is wanted."""
        try:
            # An iterable may answer its cancellation with one more prompt.
            while not self.is_given_up:
                if not self._is_wanted:
                    await self.hub.wait(self._wanted, lambda: self._is_wanted)
                    continue
                prompt = await self.iterator.__anext__()
                self._is_wanted = False
                self.prompts.append(prompt)
                self.hub.core.mark(self.key)
        except StopAsyncIteration:
            pass
        except BaseException as error:  # whatever it is, who reads the map gets it
            self.failure = error
            if self.is_given_up:
                raise

    def end(self) -> None:
        """The task is over."""
        self.is_over = True
        self.hub.core.mark(self.key)


def feed(prompts: Any, key: int) -> Feed:
    """What prompts come from.

    Args:
        prompts: an iterable or async iterable.
        key: marked when an async one has a prompt.

    Raises:
        TypeError: it is neither, or one text.
    """
    if isinstance(prompts, str | bytes | bytearray):
        raise TypeError(f"prompts must be an iterable of prompts, not one {type(prompts).__name__}: write [prompt]")
    if isinstance(prompts, Iterable):
        return Feed(prompts)
    if isinstance(prompts, AsyncIterable):
        return AsyncFeed(prompts, key)
    raise TypeError(f"prompts must be iterable, not {type(prompts).__name__}")
