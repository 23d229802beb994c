"""An engine that answers by rule, at once: for tests of what stands in front of engines."""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from llama_batch.errors import EngineCrashedError, OptionError, QueueFullError, RequestTimeoutError
from llama_batch.types import Chunk, Completion, Timings, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator


def completion(text: str, request_id: int = 0, seed: int = 7) -> Completion:
    """A finished answer of one token for each word."""
    words = len(text.split())
    return Completion(request_id, text, tuple(range(words)), "eog", None, Usage(3, words), Timings(), seed)


class FakeGeneration:
    """Awaitable and async iterable, as a Generation is."""

    def __init__(self, engine: FakeEngine, prompt: Any) -> None:
        self.engine, self.prompt = engine, prompt
        self.text = f"answer to {prompt}"
        self._chunks = iter(self.text.split(" "))
        self._first = True

    def __await__(self) -> Iterator[Any]:
        return self._finish().__await__()

    def __aiter__(self) -> FakeGeneration:
        return self

    async def __anext__(self) -> Chunk:
        await asyncio.sleep(0)
        word = next(self._chunks, None)
        if word is None or (self._failure() is not None and not self._first):
            await self._finish()
            raise StopAsyncIteration
        text = word if self._first else " " + word
        self._first = False
        return Chunk(text, 0, (1,))

    async def _finish(self) -> Completion:
        self.engine.running += 1
        self.engine.most_running = max(self.engine.most_running, self.engine.running)
        try:
            await asyncio.sleep(0)
            if self.engine.interrupt_at is not None and self.engine.finished >= self.engine.interrupt_at:
                if not self.engine.interrupted:
                    self.engine.interrupted = True
                    signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(30)
            if (failure := self._failure()) is not None:
                raise failure
            self.engine.finished += 1
            return completion(self.text)
        finally:
            self.engine.running -= 1

    def _failure(self) -> Exception | None:
        match self.prompt:
            case "full":
                return QueueFullError("the queue is full")
            case "slow":
                return RequestTimeoutError("out of time", completion=completion("answer"))
            case "crash":
                return EngineCrashedError("the engine crashed")
            case _:
                return None


class FakeEngine:
    """As much of an engine as the command line uses.

    Attributes:
        calls: method, prompt and options of each request.
        most_running: requests awaited at the same time, at most.
        interrupt_at: answers after which Ctrl-C is pressed.
    """

    def __init__(self, *, template: str | None = "{{ messages }}", interrupt_at: int | None = None) -> None:
        self.model = SimpleNamespace(chat_template=template)
        self.calls: list[tuple[str, Any, dict[str, Any]]] = []
        self.running = self.most_running = self.finished = 0
        self.interrupt_at = interrupt_at
        self.interrupted = False

    def _submit(self, method: str, prompt: Any, options: dict[str, Any]) -> FakeGeneration:
        if options.get("top_p", 0) > 1:
            raise OptionError("top_p must be between 0 and 1")
        self.calls.append((method, prompt, options))
        return FakeGeneration(self, prompt)

    def generate(self, prompt: Any, **options: Any) -> FakeGeneration:
        return self._submit("generate", prompt, options)

    def stream(self, prompt: Any, **options: Any) -> FakeGeneration:
        return self._submit("stream", prompt, options)

    def chat(self, messages: Any, **options: Any) -> FakeGeneration:
        return self._submit("chat", messages, options)
