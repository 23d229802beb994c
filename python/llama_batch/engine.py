"""The engine: many callers, one model."""

from __future__ import annotations

import atexit
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import WeakSet, ref

from llama_batch import _core, telemetry
from llama_batch._api import EngineApi
from llama_batch._figures import FiguresApi
from llama_batch._hub import current_hub, run_in_thread
from llama_batch._logs import start_draining
from llama_batch._messages import conversation
from llama_batch._sessions import SessionsApi
from llama_batch._source import is_uri, load_file, local_file, sim_settings
from llama_batch._structured import settle
from llama_batch._unique import Unique
from llama_batch.errors import ChatTemplateError, EngineForkedError, LlamaBatchError, OptionError, PromptError
from llama_batch.generation import Generation
from llama_batch.mapping import Map
from llama_batch.model import Model

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from llama_batch._structured import Parser
    from llama_batch.types import BatchStrategy, EngineState, Message, ModelSource, Prompt, StrategyView

EXIT_TIMEOUT_S = 10.0
"""How long the end of the interpreter waits for one engine."""

STRATEGY_TIMEOUT_S = 2.0
"""How long it waits for a custom batch strategy; then `SystemExit` is raised in it."""


class Engine(Unique, FiguresApi, SessionsApi, EngineApi):
    """Serves any number of callers from one model, from any thread and any event loop.

    It takes requests in at once; they wait while the model loads. `with` and `async with` wait for the model; leaving
    them serves what is under way, and leaving them by an exception cancels it. An engine that nobody holds closes.

    Example:
        >>> with Engine("model.gguf", n_parallel=8) as engine:
        ...     print(engine.generate("Once upon a time", max_tokens=100).result())

        >>> async with Engine("model.gguf") as engine:
        ...     answers = await asyncio.gather(*(engine.generate(p) for p in prompts))
    """

    native: _core.Engine
    """The Rust side."""

    _strategy: BatchStrategy
    """A custom one, where there is one."""

    def _start(
        self, model: ModelSource | None, model_path: ModelSource | None, name: str | None, options: dict[str, Any]
    ) -> None:
        if model is not None and model_path is not None:
            raise OptionError("model is given twice (as model_path too)")
        source = model if model is not None else model_path
        if name is not None and not isinstance(name, str):
            raise OptionError(f"name must be text, not {type(name).__name__}")
        if name is not None and name != _plain(name):
            raise OptionError("name holds a NUL or a lone surrogate")
        path = None if source is None or is_uri(source) else local_file(source)
        self._name = _plain(name or (path.stem if path is not None else str(source or "default")))
        if callable(strategy := options.get("batch_strategy")):
            self._strategy = strategy
            options = {**options, "batch_strategy": _Strategy(self)}
        self.native = _core.Engine(self._name, options)
        _live.add(self)
        telemetry.attach(self)
        start_draining()
        if path is not None:
            load_file(self.native, path)
        elif source is not None and str(source).startswith("sim:"):
            self.native.load_sim(sim_settings(str(source)))
        else:
            fetch = threading.Thread(target=_fetch, args=(ref(self), source), name="llama-batch-fetch", daemon=True)
            fetch.start()

    @property
    def name(self) -> str:
        """The engine's name."""
        return self._name

    @property
    def id(self) -> int:
        """The engine's number in this process, from 1."""
        return self.native.id

    @property
    def state(self) -> EngineState:
        """What the engine does: "loading", "ready", "failed" or "closed". Never raises."""
        return self.native.state

    @property
    def model(self) -> Model:
        """The model, as soon as it can turn text into tokens.

        Raises:
            EngineNotReadyError: it is still loading.
            ModelLoadError: it could not be loaded.
            EngineClosedError: the engine is closed.
        """
        return Model(self.native.model())

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait for the model.

        Args:
            timeout: how long to wait, in seconds; None waits for as long as it takes.

        Returns:
            Whether it is there; False if the time ran out.

        Raises:
            ModelNotFoundError: there is no such model.
            ModelLoadError: it could not be loaded.
            EngineClosedError: the engine was closed.

        Example:
            >>> Engine("model.gguf").wait_ready(timeout=60)
            True
        """
        return self.native.wait_ready(timeout)

    async def ready(self) -> None:
        """Wait for the model.

        Raises:
            ModelNotFoundError: there is no such model.
            ModelLoadError: it could not be loaded.
            EngineClosedError: the engine was closed.

        Example:
            >>> await engine.ready()
        """
        if self.state == "loading":
            hub, key = current_hub(), _core.new_key()
            await hub.wait(key, lambda: self.native.watch_ready(hub.core, key))
        self.native.wait_ready(0.0)

    def cancel(self, request_id: int) -> None:
        """Cancel a request. Returns at once; one that has ended, or never was, is left alone.

        Args:
            request_id: `Generation.request_id`.

        Example:
            >>> engine.cancel(generation.request_id)
        """
        self.native.cancel(request_id)

    def subscribe(
        self, callback: Callable[[telemetry.Event], object], *, events: Iterable[str] | None = None
    ) -> telemetry.Subscription:
        """Have a callable hear this engine's events, on a daemon thread.

        Args:
            callback: called with each `Event`. If it raises, that is logged, and it hears no more.
            events: the names of those it wants, "request.*" for a family; None for all.

        Returns:
            The subscription; `close()` it, or use it in `with`.

        Raises:
            OptionError: the subscriber is not callable, or there is no such event.

        Example:
            >>> subscription = engine.subscribe(print, events=["request.done"])
        """
        subscription = telemetry.Subscription(callback, events)
        subscription.listen(self.native.subscribe())
        return subscription

    def events(self, *, events: Iterable[str] | None = None) -> telemetry.EventStream:
        """Listen to this engine's events, from here on until it closes.

        Args:
            events: the names of those that are wanted, "request.*" for a family; None for all.

        Returns:
            An iterator and async iterator of `Event`.

        Raises:
            OptionError: there is no such event.

        Example:
            >>> async for event in engine.events(events=["tick"]):
            ...     print(event.measurements["batch_size"])
        """
        return telemetry.EventStream(self.native.subscribe(), events)

    def close(self, drain: bool = False, timeout: float | None = None) -> bool:
        """Close the engine: nobody comes in any more.

        Args:
            drain: serve those who are in first; otherwise they end with `finish_reason` "cancelled".
            timeout: how long to wait, in seconds; what is left then is cancelled.

        Returns:
            Whether all is over; False if the time ran out.

        Example:
            >>> engine.close(drain=True, timeout=30)
            True
        """
        try:
            return self.native.close(drain, timeout)
        except KeyboardInterrupt:
            self.native.close(False, 0.0)
            raise

    async def aclose(self, drain: bool = False, timeout: float | None = None) -> bool:
        """Close the engine, as `close` does, without blocking the event loop.

        Args:
            drain: serve those who are in first; otherwise they end with `finish_reason` "cancelled".
            timeout: how long to wait, in seconds; what is left then is cancelled.

        Returns:
            Whether all is over; False if the time ran out.

        Example:
            >>> await engine.aclose()
            True
        """
        try:
            return await run_in_thread(lambda: self.native.close(drain, timeout))
        except BaseException:
            # Whoever gives up waiting does not want it to go on either.
            self.native.close(False, 0.0)
            raise

    def __enter__(self) -> Self:
        """Wait for the model."""
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Serve what is under way, then close; after an exception, cancel it. A forked child leaves it alone."""
        with suppress(EngineForkedError):
            self.close(drain=exc_type is None)

    async def __aenter__(self) -> Self:
        """Wait for the model."""
        try:
            await self.ready()
        except BaseException:
            self.native.close(False, 0.0)
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Serve what is under way, then close; after an exception, cancel it. A forked child leaves it alone."""
        with suppress(EngineForkedError):
            if exc_type is None:
                await self.aclose(drain=True)
            else:
                # Cancelled scopes let nobody wait: cancel now, and let the threads end by themselves.
                self.native.close(False, 0.0)

    def __repr__(self) -> str:
        """The engine's name and state."""
        return f"<Engine {self._name!r} {self.state}>"

    def _submit(
        self,
        mode: Literal["generate", "stream"],
        prompt: Prompt,
        options: dict[str, Any],
    ) -> Generation[Any]:
        options, parser = settle(options)
        return Generation(self, self.native.submit(prompt, options, mode == "stream"), parser)

    def _converse(
        self, messages: str | Sequence[Message], chat: Mapping[str, Any], options: dict[str, Any]
    ) -> Generation[Any]:
        return self._talk(messages, chat, *settle(options))

    def _talk(
        self,
        messages: str | Sequence[Message],
        chat: Mapping[str, Any],
        options: dict[str, Any],
        parser: Parser | None,
    ) -> Generation[Any]:
        try:
            asked = conversation(messages, chat)
        except (ChatTemplateError, PromptError) as error:
            return Generation(self, self.native.submit_wrong(error.code, str(error), options, False))
        return Generation(self, self.native.submit_chat(asked, options, False), parser)

    def _send(self, prompt: Any, options: dict[str, Any], parser: Parser | None, chat: bool) -> Generation[Any]:
        if chat:
            return self._talk(prompt, {}, options, parser)
        return Generation(self, self.native.submit(prompt, options, False), parser)

    def _map(
        self,
        prompts: Iterable[Any] | AsyncIterable[Any],
        options: dict[str, Any],
        *,
        ordered: bool,
        on_error: Literal["raise", "return"],
        progress: bool,
        chat: bool,
    ) -> Map[Any]:
        options, parser = settle(options)
        self.native.check(options)
        return Map(
            lambda prompt: self._send(prompt, options, parser, chat),
            prompts,
            capacity=self.native.capacity,
            ordered=ordered,
            on_error=on_error,
            progress=progress,
        )


class _Strategy:
    """A custom batch strategy that keeps no engine alive, whatever it refers to: the engine keeps it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = ref(engine)

    def __call__(self, view: StrategyView) -> Mapping[int, int]:
        """What each request gets; nothing, once the engine is gone."""
        engine = self._engine()
        return {} if engine is None else engine._strategy(view)


def _plain(name: str) -> str:
    """A name that threads and events can carry."""
    return name.replace("\0", "?").encode("utf-8", "replace").decode()


def live_engines() -> list[Engine]:
    """The engines of this process that somebody holds."""
    return list(_live)


def _fetch(engine: ref[Engine], source: ModelSource | None) -> None:
    """Find or download the model, then load it; on a thread of its own, which keeps no engine alive."""
    from llama_batch.models import progress_bar, resolve

    def go_on(report: Callable[[Any], None], progress: Any) -> None:
        wanted = engine()
        if wanted is None or wanted.state != "loading":
            raise InterruptedError("nobody wants the model any more")
        report(progress)

    try:
        with progress_bar() as report:
            path = resolve(source, progress=lambda progress: go_on(report, progress))
    except BaseException as error:  # noqa: BLE001 - whatever it was, those who wait must hear of it
        if (waiting := engine()) is not None:
            waiting.native.fail(error)
        return
    if (wanted := engine()) is not None:
        load_file(wanted.native, path)


_live: WeakSet[Engine] = WeakSet()


@atexit.register
def _close_all() -> None:
    """At the interpreter's end no thread may be left that would come back into it."""
    engines = live_engines()
    for engine in engines:
        with suppress(LlamaBatchError):
            engine.native.close(False, 0.0)
    for engine in engines:
        with suppress(LlamaBatchError):
            engine.native.close(False, EXIT_TIMEOUT_S)
    telemetry.join_pumps(1.0)
    if not _core.wait_for_strategies(STRATEGY_TIMEOUT_S):
        _core.interrupt_strategies()
        _core.wait_for_strategies(EXIT_TIMEOUT_S)
