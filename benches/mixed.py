"""Loads in which requests do different things at once: a long prompt among streams, a flood, cancellations.

Each is a way to hold a load, for benches/versus.py, and the load itself. As in `loads`, both sides get the same tokens.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llama_server import Answer
from loads import Load, Side, Writer
from outcomes import Outcome, outcome_of

if TYPE_CHECKING:
    from collections.abc import Iterable

POLL_S = 0.002
WARM_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Mixed(Load):
    """A load with newcomers: `phases` has one phase, the streams that are there when they come.

    Attributes:
        newcomers: Prompts of those that come later.
        n_before: Tokens that every stream has got by then.
        n_newcomer: Tokens that each newcomer generates.
        n_cancelled: Streams that are cancelled when the newcomers come.
    """

    newcomers: list[list[int]] = field(default_factory=list)
    n_before: int = 8
    n_newcomer: int = 8
    n_cancelled: int = 0

    @property
    def n_requests(self) -> int:
        """Requests that are to be answered in full."""
        return len(self.phases[-1]) - self.n_cancelled + len(self.newcomers)

    @property
    def n_cells(self) -> int:
        """Cells that the longest request takes."""
        streams = max(len(turns[0]) + self.n_predict for turns in self.phases[-1])
        return max([streams, *(len(prompt) + self.n_newcomer for prompt in self.newcomers)])

    def describe(self) -> str:
        """Its sizes, for people."""
        lengths = sorted({len(prompt) for prompt in self.newcomers})
        spread = "-".join(map(str, dict.fromkeys((lengths[0], lengths[-1]))))
        come = f"{len(self.newcomers)} prompts of {spread} tokens come later"
        cancelled = f", {self.n_cancelled} streams are cancelled then" if self.n_cancelled else ""
        return f"{len(self.phases[-1])} streams of {self.n_predict} tokens, {come}{cancelled}, n_ctx {self.n_ctx}"


async def _warm_up(side: Side, load: Load) -> None:
    """A short request that wakes threads and touches no prompt that is measured."""
    await side.ask(load.phases[0][0][0][-4:], WARM_TOKENS)


async def _begun(streams: Iterable[Answer], n_tokens: int) -> None:
    """Wait until each stream has so many tokens, or has ended."""
    for stream in streams:
        while len(stream.times) < n_tokens and not stream.ended:  # noqa: ASYNC110 - sides note times, and tell nobody
            await asyncio.sleep(POLL_S)


def _streams(side: Side, load: Load) -> tuple[list[Answer], list[asyncio.Task[Answer]]]:
    """Begin all streams of a load at once."""
    answers = [Answer(0.0) for _ in load.phases[-1]]
    tasks = [
        asyncio.create_task(side.ask(turns[0], load.n_predict, load.temp, answer=answer))
        for turns, answer in zip(load.phases[-1], answers, strict=True)
    ]
    return answers, tasks


async def arrive(side: Side, load: Load) -> Outcome:
    """Newcomers come while streams decode; perhaps some of the streams are cancelled just before.

    Args:
        side: Who answers.
        load: What to send, a `Mixed`.

    Returns:
        The newcomers' times to the first token, and the gaps of the streams that go on.
    """
    assert isinstance(load, Mixed)
    await _warm_up(side, load)
    start = time.perf_counter()
    streams, tasks = _streams(side, load)
    await _begun(streams, load.n_before)
    for task in tasks[len(tasks) - load.n_cancelled :]:
        task.cancel()
    come = [asyncio.create_task(side.ask(prompt, load.n_newcomer, load.temp)) for prompt in load.newcomers]
    kept = streams[: len(streams) - load.n_cancelled]
    newcomers = list(await asyncio.gather(*come))
    await asyncio.gather(*tasks[: len(kept)])
    await asyncio.gather(*tasks, return_exceptions=True)  # those that were cancelled, too
    return outcome_of([*kept, *newcomers], newcomers, kept, start, load.n_requests)


async def flood(side: Side, load: Load) -> Outcome:
    """One tenant asks everything at once; another asks one thing after the other meanwhile.

    Args:
        side: Who answers.
        load: What to send, a `Mixed`: the flood is its streams, the other tenant's requests its newcomers.

    Returns:
        The other tenant's times to the first token; whether both are answered.
    """
    assert isinstance(load, Mixed)
    await _warm_up(side, load)
    start = time.perf_counter()
    flooding = [
        asyncio.create_task(side.ask(turns[0], load.n_predict, load.temp, tenant="flood")) for turns in load.phases[-1]
    ]
    await asyncio.sleep(POLL_S)
    others = [await side.ask(prompt, load.n_newcomer, load.temp, tenant="other") for prompt in load.newcomers]
    flooded = list(await asyncio.gather(*flooding))
    return outcome_of([*flooded, *others], others, others, start, load.n_requests)


def arrival(writer: Writer, quick: bool) -> Mixed:
    """4 streams decode while a prompt of 1,500 words arrives."""
    n_words, n_predict, n_ctx = (100, 24, 2048) if quick else (1500, 128, 8192)
    streams = [[writer.tokens(f"{writer.words(16)}\n{writer.count()}")] for _ in range(4)]
    long = writer.tokens(f"{writer.words(n_words)}\n{writer.count()}")
    # A slot for it as well: what is asked is what its prompt does to the streams.
    return Mixed([streams], 5, n_predict, n_ctx, newcomers=[long], n_before=4 if quick else 16)


def flooding(writer: Writer, quick: bool) -> Mixed:
    """A tenant sends 40 requests at once to 8 slots; another sends 4, one after the other."""
    n_flood, n_predict, n_ctx = (8, 8, 2048) if quick else (40, 48, 8192)
    streams = [[writer.tokens(f"{writer.words(60)}\n{writer.count()}")] for _ in range(n_flood)]
    asked = [writer.tokens(f"{writer.words(20)}\n{writer.count()}") for _ in range(2 if quick else 4)]
    return Mixed([streams], 4 if quick else 8, n_predict, n_ctx, newcomers=asked)


def storm(writer: Writer, quick: bool) -> Mixed:
    """16 streams, 12 of which are cancelled at once while 12 newcomers come."""
    n_streams, n_cancelled, n_predict, n_ctx = (4, 2, 24, 2048) if quick else (16, 12, 96, 16384)
    streams = [[writer.tokens(f"{writer.words(60)}\n{writer.count()}")] for _ in range(n_streams)]
    come = [writer.tokens(f"{writer.words(60)}\n{writer.count()}") for _ in range(n_cancelled)]
    return Mixed([streams], n_streams, n_predict, n_ctx, newcomers=come, n_cancelled=n_cancelled)


def contexts(writer: Writer, quick: bool) -> Load:
    """8 streams that decode at contexts of 1,100 tokens."""
    n_streams, n_prompt, n_predict, n_ctx = (2, 100, 12, 1024) if quick else (8, 1100, 64, 10240)
    return Load([[[writer.exactly(n_prompt)] for _ in range(n_streams)]], n_streams, n_predict, n_ctx)
