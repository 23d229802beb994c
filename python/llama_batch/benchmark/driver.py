"""Puts the questions: in a closed loop, or at the times of arrivals."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llama_batch.benchmark.arrivals import Arrivals, ClosedLoop, OpenLoop
from llama_batch.benchmark.record import Asked, Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from llama_batch.benchmark.record import Target
    from llama_batch.benchmark.workload import Conversation
    from llama_batch.types import Message

__all__ = ["Run", "measure"]


@dataclass(slots=True)
class Run:
    """A measurement, while it goes on and afterwards.

    Attributes:
        n_planned: requests that were to be asked.
        arrivals: when conversations begin.
        started: when it started, by `time.perf_counter`. Unit: seconds.
        ended: when the last request had ended.
        cpu_s: CPU time of this process meanwhile, the engine's included where it is in this process. Unit: seconds.
        interrupted: whether it was stopped before its end.
        records: how each request went, in the order in which they were sent.
    """

    n_planned: int
    arrivals: Arrivals
    started: float = 0.0
    ended: float = 0.0
    cpu_s: float = 0.0
    interrupted: bool = False
    records: list[Record] = field(default_factory=list)


async def measure(
    target: Target,
    conversations: Sequence[Conversation],
    arrivals: Arrivals,
    *,
    ignore_eos: bool = True,
    max_s: float | None = None,
    progress: Callable[[Run], None] | None = None,
) -> Run:
    """Hold conversations with a target.

    A request that fails ends its conversation and is noted; cancelling the task that awaits this ends all that is
    under way, and what came until then is returned with `interrupted`.

    Args:
        target: who answers.
        conversations: what to ask.
        arrivals: when each begins.
        ignore_eos: whether answers go on to their full length, past the model's end.
        max_s: seconds after which nothing more is asked; what is under way is finished. None: no such time.
        progress: called after each request.

    Returns:
        How it went.
    """
    run = Run(sum(len(each.turns) for each in conversations), arrivals)
    driver = _Driver(target, run, ignore_eos, max_s, progress)
    cpu = time.process_time()
    run.started = time.perf_counter()
    try:
        match arrivals:
            case ClosedLoop():
                await driver.closed(conversations, arrivals.concurrency)
            case OpenLoop():
                await driver.open(conversations, arrivals)
    except asyncio.CancelledError:
        run.interrupted = True
    run.ended, run.cpu_s = time.perf_counter(), time.process_time() - cpu
    return run


class _Driver:
    """One run's clients."""

    def __init__(
        self,
        target: Target,
        run: Run,
        ignore_eos: bool,
        max_s: float | None,
        progress: Callable[[Run], None] | None,
    ) -> None:
        self._target, self._run, self._ignore_eos, self._max_s = target, run, ignore_eos, max_s
        self._progress = progress

    @property
    def _is_over(self) -> bool:
        return self._max_s is not None and time.perf_counter() - self._run.started >= self._max_s

    async def closed(self, conversations: Sequence[Conversation], concurrency: int) -> None:
        """Clients that take the next conversation when they are through with one."""
        waiting = enumerate(conversations)

        async def client() -> None:
            for index, conversation in waiting:
                if self._is_over:
                    return
                await self._hold(index, conversation, time.perf_counter())

        async with asyncio.TaskGroup() as clients:
            for _ in range(min(concurrency, len(conversations))):
                clients.create_task(client())

    async def open(self, conversations: Sequence[Conversation], arrivals: OpenLoop) -> None:
        """Conversations that begin at their times."""
        room = asyncio.Semaphore(arrivals.concurrency) if arrivals.concurrency else contextlib.nullcontext()

        async def begin(index: int, conversation: Conversation, due: float) -> None:
            async with room:
                if not self._is_over:
                    await self._hold(index, conversation, due)

        async with asyncio.TaskGroup() as held:
            async for index, due in self._due(arrivals.offsets[: len(conversations)]):
                held.create_task(begin(index, conversations[index], due))

    async def _due(self, offsets: Sequence[float]) -> AsyncIterator[tuple[int, float]]:
        """Each arrival when its time has come."""
        for index, offset in enumerate(offsets):
            due = self._run.started + offset
            if self._max_s is not None and offset >= self._max_s:
                return
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            yield index, due

    async def _hold(self, index: int, conversation: Conversation, due: float) -> None:
        history: list[Message] = []
        for number, turn in enumerate(conversation.turns):
            history += turn.messages
            record = Record(index, number, due, sent=time.perf_counter())
            self._run.records.append(record)
            try:
                answer = await self._target.ask(Asked(tuple(history), turn.n_output, self._ignore_eos), record)
            except asyncio.CancelledError:
                record.failure, record.ended = "interrupted", time.perf_counter()
                raise
            if self._progress is not None:
                self._progress(self._run)
            if not record.complete or self._is_over:
                return
            history.append({"role": "assistant", "content": answer})
            due = record.ended
