"""How much of a prompt has been read, for requests that ask (`return_progress`)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_batch.engine import Engine
    from llama_batch.telemetry import Event

_EVENTS = ("request.start", "request.done", "request.exception", "tick")


class Reading:
    """One prompt that is being read."""

    def __init__(self, n_total: int, n_cached: int) -> None:
        self.n_total, self.n_cached = n_total, n_cached
        self.n_processed = float(n_cached)
        self.began = time.monotonic()
        self.changed = asyncio.Event()
        self.changed.set()

    @property
    def n_left(self) -> float:
        """Tokens that are still to be computed."""
        return self.n_total - self.n_processed

    def add(self, n_tokens: float) -> None:
        """So many more were computed."""
        self.n_processed += n_tokens
        self.changed.set()

    def as_dict(self) -> dict[str, Any]:
        """llama-server's `prompt_progress`."""
        return {
            "total": self.n_total,
            "cache": self.n_cached,
            "processed": int(self.n_processed),
            "time_ms": int(1e3 * (time.monotonic() - self.began)),
        }


class ProgressBoard:
    """Follows the engine's events, only while somebody wants to know.

    A pass tells how many tokens of prompts it computed, not of which ones: prompts that are read at the same time are
    taken to advance alike.
    """

    def __init__(self, engine: Engine) -> None:
        """Follow an engine.

        Args:
            engine: the engine.
        """
        self._engine = engine
        self._readings: dict[int, Reading] = {}
        self._awaited: dict[int, asyncio.Event] = {}
        self._n_followers = 0
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """The time in which somebody wants to know; it begins before the request is submitted."""
        self._n_followers += 1
        if self._task is None:
            # Subscribed here and not in the task: what happens until it runs is heard too.
            self._task = asyncio.create_task(self._listen(self._engine.events(events=_EVENTS)))
        try:
            yield
        finally:
            self._n_followers -= 1
            if self._n_followers == 0:
                self._task.cancel()
                self._task = None
                self._readings.clear()

    async def reading(self, request_id: int) -> Reading:
        """Wait until a request has a slot; what is read then."""
        while (reading := self._readings.get(request_id)) is None:
            await self._awaited.setdefault(request_id, asyncio.Event()).wait()
            self._awaited.pop(request_id, None)
        return reading

    async def _listen(self, events: Any) -> None:
        async for event in events:
            self._hear(event)

    def _hear(self, event: Event) -> None:
        if event.name == "tick":
            self._share(event.measurements["prefill_tokens"])
            return
        request_id = event.metadata["request_id"]
        if event.name != "request.start":
            self._readings.pop(request_id, None)
            return
        told = event.measurements
        self._readings[request_id] = Reading(int(told["prompt_tokens"]), int(told["prefix_cache_tokens"]))
        if (awaited := self._awaited.get(request_id)) is not None:
            awaited.set()

    def _share(self, n_tokens: float) -> None:
        """Give each prompt an equal part of what a pass computed; what one has no use for goes to the others."""
        readings = sorted((each for each in self._readings.values() if each.n_left > 0), key=lambda each: each.n_left)
        for place, reading in enumerate(readings):
            part = min(reading.n_left, n_tokens / (len(readings) - place))
            n_tokens -= part
            reading.add(part)
