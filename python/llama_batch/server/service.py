"""What all requests to a server share, and what one request is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from llama_batch.errors import LlamaBatchError
from llama_batch.server.failures import HttpError, as_http, busy
from llama_batch.server.fields import at_fault
from llama_batch.server.json_io import dumps
from llama_batch.server.keys import ApiKey, Client
from llama_batch.server.progress import ProgressBoard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, MutableMapping

    from llama_batch.engine import Engine
    from llama_batch.generation import Generation
    from llama_batch.server.settings import Settings
    from llama_batch.types import Completion

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

T = TypeVar("T")

_WEIGHT_OF_NEWS = 0.1
_LONGEST_RETRY_S = 60.0


class Service:
    """An engine, what its operator decided, and who is there."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        """Serve an engine.

        Args:
            engine: the engine.
            settings: what the operator decided.
        """
        self.engine, self.settings = engine, settings
        self.model_name = settings.model_name or engine.name
        self.started_at = int(time.time())
        self.is_draining = False
        self.n_active = 0
        self.progress = ProgressBoard(engine)
        self.running: dict[int, Generation] = {}
        self._request_s = 1.0
        self._charging: set[asyncio.Task[None]] = set()
        shared = settings.cache_scope == "shared"
        self._clients = {key.digest: Client(key, shared=shared) for key in settings.keys.keys}
        self._anonymous = Client(None, shared=shared, trusted=settings.trust_callers)

    def client(self, key: ApiKey | None) -> Client:
        """Who holds a key."""
        return self._anonymous if key is None else self._clients[key.digest]

    @contextlib.contextmanager
    def admitted(self, client: Client) -> Iterator[None]:
        """The time in which a request that takes the engine's is served.

        Raises:
            HttpError: 503 while the server shuts down, 429 where the client's limits are used up.
        """
        if self.is_draining:
            raise HttpError(
                503,
                "the server is shutting down",
                code="shutting_down",
                headers={"retry-after": "5", "connection": "close"},
            )
        if (refusal := client.refusal()) is not None:
            raise busy(*refusal, code="rate_limit_exceeded")
        began = time.monotonic()
        self.n_active += 1
        client.n_active += 1
        try:
            yield
        finally:
            self.n_active -= 1
            client.n_active -= 1
            self._request_s += _WEIGHT_OF_NEWS * (time.monotonic() - began - self._request_s)

    def retry_after_s(self) -> float:
        """When a full queue may have room: the time until the next of the running requests may end. Unit: seconds."""
        slots, _ = self.engine.native.capacity
        return min(_LONGEST_RETRY_S, self._request_s / max(1, slots))

    def charge_later(self, client: Client, count: Callable[[], Awaitable[int]]) -> None:
        """Charge a client for what it leaves behind: going away is no way around a limit.

        Args:
            client: who left.
            count: waits for the end of what was left; the tokens that were read or generated.
        """
        if client.is_charged:
            task = asyncio.create_task(self._charge(client, count))
            self._charging.add(task)
            task.add_done_callback(self._charging.discard)

    async def _charge(self, client: Client, count: Callable[[], Awaitable[int]]) -> None:
        client.charge(await count())

    def hold(self, generation: Generation) -> None:
        """Tell of a request in `/slots` until it ends."""
        self.running[generation.request_id] = generation

    def release(self, generation: Generation) -> None:
        """Tell of it no more."""
        self.running.pop(generation.request_id, None)


async def _left(generations: list[Generation]) -> int:
    """The tokens of requests that nobody waits for any more."""
    await asyncio.gather(*generations, return_exceptions=True)
    done = [made for generation in generations if (made := _outcome(generation)) is not None]
    return sum(_counted(done))


def _counted(completions: list[Completion]) -> tuple[int, int]:
    """Tokens read and generated. A prompt that has several answers counts once."""
    n_prompt = sum(done.usage.prompt_tokens for done in completions)
    return n_prompt, sum(each.usage.generated_tokens for done in completions for each in done.choices)


def _outcome(generation: Generation) -> Completion | None:
    """What an ended request has of an answer."""
    outcome = generation.outcome()
    return getattr(outcome, "completion", None) if isinstance(outcome, Exception) else outcome


class ClientGoneError(Exception):
    """The client went away: there is nobody to answer."""


class Call:
    """One request of HTTP: who sent it, and how to answer.

    Attributes:
        service: what all share.
        client: who sent it.
        request_id: names it in the log and in the answer.
        facts: what the log tells of it.
        is_gone: whether the client went away.
        is_told: whether what it used is in the log, and charged.
        sent: the fields that the client sent.
        prompt_field: the one that holds the prompt, which errors of the prompt name.
        send: sends what an answer begins with, through all that watches over it.
        send_on: sends what comes after that, straight to the server: a stream does so for each token.
    """

    def __init__(self, service: Service, request_id: str, scope: Scope) -> None:
        self.service, self.request_id, self.scope = service, request_id, scope
        self.client = service.client(None)
        self.facts: dict[str, Any] = {}
        self.is_told = False
        self.sent: Collection[str] = ()
        self.prompt_field: str | None = None
        self.is_gone = False
        self.body_length = 0
        self.began = time.perf_counter()
        self.receive: Receive
        self.send: Send
        self.send_on: Send

    def failure(self, error: Exception) -> HttpError:
        """The answer that an error becomes, naming the field that is at fault."""
        param = at_fault(error, self.sent, self.prompt_field) if isinstance(error, LlamaBatchError) else None
        return as_http(error, retry_after_s=self.service.retry_after_s(), param=param)

    async def body(self) -> bytes:
        """The body.

        Raises:
            ClientGoneError: the client went away before its end.
            HttpError: it is too long, or takes too long to come.
        """
        limit_s = self.service.settings.body_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._read_body()
        except TimeoutError:
            raise HttpError(408, f"the body did not come within {limit_s:g} s", code="body_timeout") from None

    async def _read_body(self) -> bytes:
        parts: list[bytes] = []
        more = True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = b"".join(parts)
        self.body_length = len(body)
        return body

    async def answer(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send an answer, as JSON."""
        await self.send_bytes(dumps(value), "application/json", status, headers)

    async def send_bytes(
        self, body: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send an answer; to HEAD without its body."""
        await self.send({
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", content_type.encode()),
                (b"content-length", str(len(body)).encode()),
                *((name.encode(), value.encode()) for name, value in (headers or {}).items()),
            ],
        })  # fmt: skip
        await self.send({"type": "http.response.body", "body": b"" if self.scope["method"] == "HEAD" else body})

    @contextlib.asynccontextmanager
    async def watching(self, generations: list[Generation]) -> AsyncIterator[None]:
        """Cancel requests of the engine when the client goes away, and when the block is left before their ends."""
        watcher = asyncio.create_task(self._watch(generations))
        for generation in generations:
            self.service.hold(generation)
        try:
            yield
        finally:
            watcher.cancel()
            for generation in generations:
                generation.cancel()
                self.service.release(generation)
            if not self.is_told:
                self.service.charge_later(self.client, partial(_left, generations))

    async def _watch(self, generations: list[Generation]) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        for generation in generations:
            generation.cancel()

    async def completions(self, generations: list[Generation]) -> list[Completion]:
        """Wait for answers, and tell what they used. The first error ends all.

        Raises:
            ClientGoneError: the client went away.
            LlamaBatchError: one ended with this error.
        """
        async with self.watching(generations):
            if len(generations) == 1:
                done = [await generations[0]]
            else:
                done = await asyncio.gather(*generations)
            if self.is_gone:
                raise ClientGoneError
            self.told(done)  # within the block: what is not told by its end is charged as left behind
        return done

    async def attended(self, work: Awaitable[T]) -> T:
        """Wait for something else than a request of the engine; if the client goes away, it is cancelled.

        Raises:
            ClientGoneError: the client went away.
        """
        task = asyncio.ensure_future(work)
        watcher = asyncio.create_task(self._watch([]))
        try:
            await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGoneError
            return task.result()
        finally:
            watcher.cancel()
            task.cancel()

    def told(self, completions: list[Completion]) -> None:
        """Put what a request used into the log, and charge the client."""
        self.is_told = True
        first = completions[0]
        n_prompt, n_generated = _counted(completions)
        self.client.charge(n_prompt + n_generated)
        self.facts.update(
            prompt_tokens=n_prompt,
            cached_tokens=sum(done.usage.prefix_cache_tokens for done in completions),
            completion_tokens=n_generated,
            queue_ms=round(first.timings.queue_ms, 2),
            ttft_ms=round(first.timings.ttft_ms, 2),
            finish_reason=first.finish_reason,
        )
