"""Telemetry: what an engine does, as events, to callables and to async iterators.

Events run off the engine thread, behind a bounded queue of 4,096 events for each subscriber, which counts what it
drops. A callable that raises is reported through `logging` and hears no more; the engine goes on.

| Event | Measurements | Metadata (beside `engine`) |
|---|---|---|
| `tick` | batch_size, decode_tokens, draft_tokens, prefill_tokens, active_slots, queue_depth, eval_ms, sample_ms, \
forecast_ms | |
| `request.queued` | prompt_tokens, queue_depth | request_id, mode, session |
| `request.start` | prompt_tokens, prefix_cache_tokens, queue_ms | request_id, seq_id, mode, session, prefix_source, \
prefix_reason |
| `request.done` | prompt_tokens, generated_tokens, draft_tokens, accepted_tokens, duration_ms, ttft_ms, queue_ms, \
prompt_eval_rate, generation_rate, prefix_cache_tokens, prefix_cache_ratio | request_id, seq_id, mode, \
session, prefix_source, prefix_reason, stop_reason |
| `request.exception` | as `request.done` | as `request.done`, with reason, code; stop_reason is "error" |
| `request.parked` | n_tokens | request_id, seq_id |
| `request.resumed` | prefix_cache_tokens, parked_ms | request_id, seq_id |
| `kv_pressure` | purged_slots, batch_splits, n_parked | purged_seq_ids, reason |
| `prefix_instability` | matched_tokens, cached_tokens | seq_id |
| `ram_cache` | bytes, tokens, total_bytes, entries | op |
| `disk_cache` | bytes, tokens, total_bytes, entries | op, reason |
| `strategy_failed` | | reason |
| `backend.lost` | | reason, endpoint |
| `backend.retry` | attempt, delay_ms | reason |
| `backend.restored` | attempts, lost_ms | |
| `backend.slow` | elapsed_ms | endpoint, reason |

`forecast_ms` is what `eval_ms` and `sample_ms` were expected to be together, by the costs that passes before had
(`Stats`); None for the first pass, and for texts to embed. `mode` is "generate", "stream" or "embed", `stop_reason` a
finish reason, "embedded", "timeout" or "error". A request for embeddings starts with its first text; its
`prompt_tokens` are those of all its texts, its `seq_id` is None, and a `tick` counts its rows as prefill.
`prefix_source` is "own" (the session's own last sequence), "donor" (another's), "ram", "disk" or "none".
`prefix_reason` says why: "session", "longest" (no other sequence had more), "awaited" (another request was computing
it), "saved" (it was in RAM or on disk); or for nothing reused "off" (not allowed), "no_match", "out_of_reach" (a
sequence began the same, but its memory cannot go back so far), "refused". `op` is "save", "restore" or "evict"; on
disk also "fail" (what could not be written or was damaged; `reason` says why, and it is computed instead). The
`reason` of `kv_pressure` is "cells" (more were needed than were free), "backend" (llama.cpp found no room),
"sequences" (none was free) or "residency" (idle cells slowed the running requests by more than they were worth).
`backend.*` tell of an isolated backend that is gone, is about to be made again, is there again, or has had one work
under way for more than 10 s. Their `endpoint` names the servers (`rpc_servers`) that may be why, with commas: those in
trouble, or else all, or "" without any; the `reason` of `backend.slow` is what is wrong with them, or None where they
take connections. `seq_id` is None for a request that never had a slot. Rates are tokens per second, of the
tokens really computed; `ttft_ms` includes the queue.

Example:
    >>> with engine.subscribe(lambda event: print(event.name, event.measurements), events=["request.done"]):
    ...     engine.generate("Hello").result()
"""

from __future__ import annotations

import inspect  # `dataclasses` has imported it already
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from llama_batch import _core
from llama_batch._hub import current_hub
from llama_batch._unique import Unique
from llama_batch.errors import EngineForkedError, LlamaBatchError, OptionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from llama_batch.engine import Engine

__all__ = ["EVENT_NAMES", "EngineRef", "Event", "EventStream", "Subscription", "subscribe"]

EVENT_NAMES = (
    "tick",
    "request.queued",
    "request.start",
    "request.done",
    "request.exception",
    "request.parked",
    "request.resumed",
    "kv_pressure",
    "prefix_instability",
    "ram_cache",
    "disk_cache",
    "strategy_failed",
    "backend.lost",
    "backend.retry",
    "backend.restored",
    "backend.slow",
)


CLOSE_TIMEOUT_S = 5.0
"""How long the end of a subscription waits for its callable to hear what was told before."""


@dataclass(frozen=True, slots=True)
class EngineRef:
    """Which engine an event is about.

    Attributes:
        name: the engine's name.
        id: its number in this process, from 1.
    """

    name: str
    id: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that an engine did.

    Attributes:
        name: what, such as "request.done".
        measurements: numbers, by name.
        metadata: what they belong to, by name; `engine` is in each.
        at_s: when, in seconds since the engine was made.
    """

    name: str
    measurements: Mapping[str, float]
    metadata: Mapping[str, Any]
    at_s: float = 0.0


class _Wanted:
    """Which events a subscriber wants."""

    def __init__(self, events: Iterable[str] | None) -> None:
        self._names: set[str] | None = None
        if events is None:
            return
        self._names = set()
        if not isinstance(events, Iterable):
            raise OptionError(f"events must be names of events, not {type(events).__name__}")
        for name in [events] if isinstance(events, str) else events:
            if not isinstance(name, str):
                raise OptionError(f"the name of an event is text, not {type(name).__name__}")
            family = name.removesuffix("*")
            found = {n for n in EVENT_NAMES if n == name or (family != name and n.startswith(family))}
            if not found:
                raise OptionError(f"unknown event {name!r}; there are {', '.join(EVENT_NAMES)}")
            self._names |= found

    def __contains__(self, name: str) -> bool:
        return self._names is None or name in self._names


class Subscription(Unique):
    """A callable that hears events, until `close()` or the end of `with`.

    Each engine that it hears has a daemon thread that calls it.
    """

    def __init__(self, callback: Callable[[Event], object], events: Iterable[str] | None) -> None:
        """Subscribe a callable. Made by `Engine.subscribe` and `llama_batch.subscribe`.

        Args:
            callback: called with each event.
            events: the names of those it wants, "request.*" for a family; None for all.

        Raises:
            OptionError: the subscriber is not callable, or there is no such event.
        """
        if not callable(callback):
            raise OptionError(f"a subscriber must be callable, not {type(callback).__name__}")
        if inspect.iscoroutinefunction(callback):
            raise OptionError("a subscriber is a plain function; async code reads `async for event in engine.events()`")
        self._callback = callback
        self._wanted = _Wanted(events)
        self._lock = threading.Lock()
        self._closed = False
        self._is_deaf = False
        self._n_dropped = 0
        self._ears: dict[_core.Hub, tuple[_core.EventReceiver, threading.Thread]] = {}

    @property
    def n_dropped(self) -> int:
        """Events that were lost because the callable was too slow."""
        with self._lock:
            return self._n_dropped + sum(receiver.n_dropped for receiver, _ in self._ears.values())

    def close(self) -> None:
        """Hear no more than was told until now: waits at most 5 s for the callable to hear that.

        A callable that closes its own subscription hears it afterwards.
        """
        with self._lock:
            self._closed = True
            ears = list(self._ears.values())
        _everywhere.discard(self)
        for receiver, _ in ears:
            receiver.close()
        _join((thread for _, thread in ears), CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        """Hear events until the end of `with`."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Hear what was told until now, and no more."""
        self.close()

    def listen(self, receiver: _core.EventReceiver) -> None:
        """Hear one engine.

        Args:
            receiver: the engine's events.
        """
        hub = _core.Hub(False)
        thread = threading.Thread(target=self._pump, args=(receiver, hub), name="llama-batch-events", daemon=True)
        with self._lock:
            if self._closed:
                return
            self._ears[hub] = (receiver, thread)
            _pumps.add(thread)
            thread.start()

    def _pump(self, receiver: _core.EventReceiver, hub: _core.Hub) -> None:
        with suppress(EngineForkedError):  # in a child that the callable forked off
            while (event := receiver.recv(0.0)) is not False:
                if event is not None:
                    self._tell(event)
                elif not receiver.watch(hub, 0):
                    hub.wait(None)
                    hub.drain()
        with self._lock:
            self._ears.pop(hub, None)
            self._n_dropped += receiver.n_dropped

    def _tell(self, event: Event) -> None:
        if self._is_deaf or event.name not in self._wanted:
            return
        try:
            self._callback(event)
        except BaseException:  # also `SystemExit`: it must not end the thread that listens
            import logging

            text = "A subscriber raised on %s and hears no more"
            logging.getLogger("llama_batch.telemetry").exception(text, event.name)
            self._is_deaf = True
            self.close()


class EventStream(Unique):
    """Events of one engine, as an iterator and async iterator; it ends when the engine closes.

    Example:
        >>> async for event in engine.events(events=["request.*"]):
        ...     print(event.metadata["request_id"], event.name)
    """

    def __init__(self, receiver: _core.EventReceiver, events: Iterable[str] | None) -> None:
        """Listen to an engine. Made by `Engine.events`.

        Args:
            receiver: the engine's events.
            events: the names of those that are wanted; None for all.
        """
        self._receiver = receiver
        self._wanted = _Wanted(events)
        self._key = _core.new_key()

    @property
    def n_dropped(self) -> int:
        """Events that were lost because the reader was too slow."""
        return self._receiver.n_dropped

    def __iter__(self) -> Iterator[Event]:
        """Hear events; blocks the thread between them."""
        return self

    def __next__(self) -> Event:
        """The next event."""
        while True:
            # In slices, so that Ctrl-C works.
            event = self._receiver.recv(0.1)
            if event is False:
                raise StopIteration
            if event is not None and event.name in self._wanted:
                return event

    def __aiter__(self) -> AsyncIterator[Event]:
        """Hear events."""
        return self

    async def __anext__(self) -> Event:
        """The next event."""
        hub = current_hub()
        while True:
            event = self._receiver.recv(0.0)
            if event is False:
                raise StopAsyncIteration
            if event is None:
                await hub.wait(self._key, lambda: self._receiver.watch(hub.core, self._key))
            elif event.name in self._wanted:
                return event


def subscribe(callback: Callable[[Event], object], *, events: Iterable[str] | None = None) -> Subscription:
    """Have a callable hear the events of all engines of this process, those to come included.

    Args:
        callback: called with each `Event`, on a daemon thread.
        events: the names of those it wants, "request.*" for a family; None for all.

    Returns:
        The subscription; keep it, and `close()` it.

    Raises:
        OptionError: the subscriber is not callable, or there is no such event.

    Example:
        >>> subscription = llama_batch.subscribe(print, events=["tick"])
    """
    subscription = Subscription(callback, events)
    _everywhere.add(subscription)
    engines = sys.modules.get("llama_batch.engine")
    for engine in engines.live_engines() if engines is not None else ():
        attach(engine, [subscription])
    return subscription


def attach(engine: Engine, subscriptions: Iterable[Subscription] | None = None) -> None:
    """Let subscriptions hear an engine; without any, those that hear all engines."""
    for subscription in list(_everywhere) if subscriptions is None else subscriptions:
        with suppress(LlamaBatchError):
            subscription.listen(engine.native.subscribe())


def join_pumps(timeout_s: float) -> None:
    """Wait for the threads that call subscribers, once their engines are closed: so long for all of them."""
    _join(list(_pumps), timeout_s)


def _join(pumps: Iterable[threading.Thread], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    for pump in pumps:
        if pump is not threading.current_thread():
            pump.join(max(0.0, end - time.monotonic()))


_everywhere: set[Subscription] = set()
_pumps: WeakSet[threading.Thread] = WeakSet()
