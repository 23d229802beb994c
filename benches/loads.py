"""What benches/versus.py sends, to both sides alike: seeded conversations in token ids, and the clients that hold them.

A load is phases of conversations; a number of clients hold them, each one after the other, and a turn is asked as soon
as the one before it is answered. A burst of requests is conversations of one turn. Every prompt ends in a count, which
models go on with for long, so that both sides generate as many tokens without being told to ignore the end.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from llama_batch import LlamaBatchError
from llama_batch.benchmark.workload import WORDS
from llama_server import Answer
from outcomes import Outcome, outcome_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_batch import Engine, Model

Conversation = list[list[int]]
"""Turns: each what is added to the history before the next answer."""


class Side(Protocol):
    """Who answers."""

    async def ask(
        self,
        prompt: Sequence[int],
        n_predict: int,
        temp: float = 0,
        *,
        answer: Answer | None = None,
        tenant: str | None = None,
    ) -> Answer:
        """Answer a prompt, greedily or drawn at a temperature; failures are in the answer.

        Who cannot wait for the end gives the `answer` to fill. A `tenant` is told to sides that know any.
        """


@dataclass(frozen=True, slots=True)
class Load:
    """What one measurement sends.

    Attributes:
        phases: Conversations, held one phase after the other; only the last phase is measured.
        n_clients: Conversations held at the same time.
        n_predict: Tokens of each answer.
        n_ctx: Cells of the KV cache that the answering side has, in tokens.
        first_turn: The first turn whose time to the first token counts.
        temp: The temperature; 0 is greedy. Where tokens are drawn, the model's end is ignored, so that all answers are
            as long.
    """

    phases: list[list[Conversation]]
    n_clients: int
    n_predict: int
    n_ctx: int
    first_turn: int = 0
    temp: float = 0

    @property
    def n_requests(self) -> int:
        """Requests that are measured."""
        return sum(len(turns) for turns in self.phases[-1])

    @property
    def n_cells(self) -> int:
        """Cells that the longest conversation takes."""
        return max(sum(len(turn) + self.n_predict for turn in turns) for phase in self.phases for turns in phase)

    def describe(self) -> str:
        """Its sizes, for people."""
        turns = len(self.phases[-1][0])
        each = f"{len(self.phases[-1])} conversations of {turns} turns" if turns > 1 else f"{self.n_requests} requests"
        return (
            f"{self.n_clients} clients, {each}, {self.n_predict} tokens an answer, up to {self.n_cells} cells each, "
            f"n_ctx {self.n_ctx}"
        )


class Ours:
    """Our engine, through its public API."""

    def __init__(self, engine: Engine) -> None:
        """Ask this engine.

        Args:
            engine: It is ready, and stays open.
        """
        self._engine = engine

    async def ask(
        self,
        prompt: Sequence[int],
        n_predict: int,
        temp: float = 0,
        *,
        answer: Answer | None = None,
        tenant: str | None = None,
    ) -> Answer:
        """Stream an answer.

        Args:
            prompt: Token ids.
            n_predict: Tokens to generate.
            temp: The temperature; 0 is greedy.
            answer: Where to note it as it comes.
            tenant: Whose request it is; tenants share no cache.

        Returns:
            How it went.
        """
        answer = answer or Answer(0.0)
        answer.asked = time.perf_counter()
        try:
            generation = self._engine.stream(
                prompt, max_tokens=n_predict, temp=temp, ignore_eos=temp > 0, cache_scope=tenant
            )
            async for chunk in generation:
                answer.times += [time.perf_counter()] * len(chunk.token_ids)
            done = await generation
            answer.tokens, answer.n_tokens = list(done.token_ids), done.usage.generated_tokens
            answer.n_cached = done.usage.prefix_cache_tokens
            if done.finish_reason not in ("eog", "max_tokens"):
                answer.failure = done.finish_reason
        except LlamaBatchError as error:
            answer.failure = f"{type(error).__name__}: {error}"
        answer.ended = time.perf_counter()
        return answer


async def hold(side: Side, load: Load) -> Outcome:
    """Hold a load's conversations with one side, after a short request that wakes its threads.

    Args:
        side: Who answers.
        load: What to send.

    Returns:
        What its last phase gave.
    """
    await side.ask(load.phases[0][0][0][-4:], 4)
    outcome = None
    for phase in load.phases:
        outcome = await _hold_phase(side, load, phase)
    assert outcome is not None
    return outcome


async def _hold_phase(side: Side, load: Load, phase: list[Conversation]) -> Outcome:
    waiting = iter(phase)
    answers: list[tuple[int, Answer]] = []

    async def client() -> None:
        for turns in waiting:
            history: list[int] = []
            for turn, added in enumerate(turns):
                history += added
                answer = await side.ask(history, load.n_predict, load.temp)
                answers.append((turn, answer))
                if answer.failure is not None:
                    break
                history += answer.tokens

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(load.n_clients)))
    everybody = [answer for _, answer in answers]
    newcomers = [answer for turn, answer in answers if turn >= load.first_turn]
    return outcome_of(everybody, newcomers, everybody, start, sum(len(turns) for turns in phase))


class Writer:
    """Writes prompts: the same ones for the same seed."""

    def __init__(self, model: Model, seed: int) -> None:
        """Write for a model.

        Args:
            model: Whose tokens.
            seed: Of all that is drawn.
        """
        self._model = model
        self._random = random.Random(seed)

    def words(self, n_words: int) -> str:
        """Words without a meaning.

        Args:
            n_words: How many.

        Returns:
            The text.
        """
        return " ".join(self._random.choices(WORDS, k=n_words))

    def count(self) -> str:
        """The beginning of a count, from a number of its own."""
        start = self._random.randrange(1000, 9000)
        return f"{start}, {start + 1}, {start + 2},"

    def tokens(self, text: str, first: bool = True) -> list[int]:
        """Text in tokens.

        Args:
            text: The text.
            first: Whether a prompt begins with it, as against a later turn.

        Returns:
            The tokens.
        """
        return self._model.tokenize(text, add_special=first)

    def question(self) -> str:
        """A question that no other request asks, and the beginning of its answer."""
        return f"\nQuestion: what do {self.words(3)} have to do with {self.words(3)}?\nAnswer: {self.count()}"

    def exactly(self, n_tokens: int) -> list[int]:
        """A prompt of words that ends in a count.

        Args:
            n_tokens: Its length.

        Returns:
            The tokens.
        """
        tail = self.tokens("\n" + self.count(), first=False)
        return self.tokens(self.words(n_tokens))[: n_tokens - len(tail)] + tail


def shared(writer: Writer, quick: bool, n_bursts: int) -> Load:
    """16 clients, 32 requests that share a prompt of 400 words and ask distinct questions.

    Args:
        writer: Writes the prompts.
        quick: A small one that only shows that it works.
        n_bursts: How often, with new questions each time; only the last one is measured.

    Returns:
        The load.
    """
    n_clients, n_requests, n_words, n_predict, n_ctx = (4, 6, 40, 8, 2048) if quick else (16, 32, 400, 32, 16384)
    begin = writer.words(n_words)
    bursts = [[[writer.tokens(begin + writer.question())] for _ in range(n_requests)] for _ in range(n_bursts)]
    return Load(bursts, n_clients, n_predict, n_ctx)


def chats(writer: Writer, quick: bool) -> Load:
    """8 chats of 4 turns with a system prompt of 400 words in common; the first turn's TTFT does not count."""
    n_chats, n_turns, n_words, n_predict, n_ctx = (4, 2, 40, 8, 2048) if quick else (8, 4, 400, 32, 16384)
    system = writer.words(n_words)

    def turn(first: bool) -> list[int]:
        asks = f"\nUser: {writer.words(20)}\nAssistant: {writer.count()}"
        return writer.tokens(system + asks if first else asks, first)

    held = [[turn(first=number == 0) for number in range(n_turns)] for _ in range(n_chats)]
    return Load([held], n_chats, n_predict, n_ctx, first_turn=1)


def distinct(writer: Writer, quick: bool) -> Load:
    """16 clients, 32 requests with prompts of 80 words that have nothing in common."""
    n_clients, n_requests, n_words, n_predict, n_ctx = (4, 6, 10, 8, 2048) if quick else (16, 32, 80, 64, 16384)
    asked = [[writer.tokens(f"{writer.words(n_words)}\n{writer.count()}")] for _ in range(n_requests)]
    return Load([asked], n_clients, n_predict, n_ctx)


def sampled(writer: Writer, quick: bool) -> Load:
    """The same, drawn with the sampling that both sides have by default."""
    return replace(distinct(writer, quick), temp=0.8)


def oversubscription(writer: Writer, quick: bool) -> Load:
    """8 requests at once that take twice the cells together, three quarters of them for their answers.

    Each takes a few cells less than its quarter of the cache, so that the peer with four slots can hold four.
    """
    n_requests, n_ctx = (4, 256) if quick else (8, 2048)
    n_each = 2 * n_ctx // n_requests
    n_prompt = n_each // 4
    asked = [[writer.exactly(n_prompt - 4)] for _ in range(n_requests)]
    return Load([asked], n_requests, n_each - n_prompt, n_ctx)
