"""Each kind of memory when it is short, and under requests in random order: nobody fails, and every text is right."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from test_memories import GREEDY, Memory, memory, models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_batch import Completion, Engine, Generation

__all__ = ["memory", "models"]  # fixtures are found by their names in the module

N_REQUESTS = 60


def test_requests_that_need_twice_the_memory_take_turns(memory: Memory) -> None:
    if not memory.has_pool:
        pytest.skip("each request has its own room here")
    prompts = [memory.prompt(seed, 100) for seed in range(4)]
    with memory.engine(n_parallel=4, n_ctx=512) as engine:
        running = [engine.generate(prompt, temp=0, max_tokens=150) for prompt in prompts]
        answers = [generation.result() for generation in running]
        stats = engine.stats()
    assert [answer.finish_reason for answer in answers] == ["max_tokens"] * 4
    memory.assert_greedy(*((p, a.token_ids) for p, a in zip(prompts, answers, strict=True)))
    assert stats.n_parked > 0, "the test tests nothing"


class Traffic:
    """Requests in an order that a seed gives: with common beginnings, next turns, scopes, sessions, cancellations."""

    def __init__(self, memory: Memory, seed: int) -> None:
        self._memory = memory
        self._random = random.Random(seed)
        self._bases = [memory.prompt(seed, 200) for seed in range(4)]
        self._histories: list[list[int]] = []
        self._running: list[tuple[list[int], Generation]] = []
        self.told: list[tuple[Sequence[int], Completion]] = []

    def _prompt(self, n: int) -> list[int]:
        new = self._memory.prompt(2000 + n, self._random.randrange(1, 40))
        if self._histories and self._random.random() < 0.3:
            history = self._random.choice(self._histories)
            # The next turn, one after an answer that was cut or changed, or the same prompt once more.
            history = history[: self._random.choice([len(history), len(history) - 3, self._random.randrange(1, 200)])]
            return [*history, *new][:300]
        base = self._random.choice(self._bases)
        return [*base[: self._random.choice([200, 128, self._random.randrange(1, 200)])], *new]

    def _submit(self, engine: Engine, n: int) -> None:
        prompt = self._prompt(n)
        options = {
            "max_tokens": self._random.randrange(1, 40),
            "cache_scope": self._random.choice([None, None, "a", "b"]),
            "session": self._random.choice([None, None, 1, 2]),
            "cache_prompt": self._random.random() < 0.9,
        }
        self._running.append((prompt, engine.generate(prompt, **{**GREEDY, **options})))

    def _finish(self) -> None:
        prompt, generation = self._running.pop(self._random.randrange(len(self._running)))
        if self._random.random() < 0.2:
            generation.cancel()
        answer = generation.result()
        self.told.append((prompt, answer))
        self._histories.append([*prompt, *answer.token_ids])

    def run(self, engine: Engine) -> None:
        for n in range(N_REQUESTS):
            self._submit(engine, n)
            while len(self._running) >= self._random.choice([2, 6, 12]):
                self._finish()
        while self._running:
            self._finish()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 7))])
def test_any_order_of_requests_gives_right_texts(memory: Memory, seed: int) -> None:
    traffic = Traffic(memory, seed)
    # Four requests of 340 tokens at most share 768 cells and a tier of 1 MiB, which is 1,000 tokens or 25 states.
    with memory.engine(n_parallel=4, n_ctx=768, ram_mb=1, chunk_size=64) as engine:
        traffic.run(engine)
        stats = engine.stats()
    assert len(traffic.told) == N_REQUESTS
    assert {answer.finish_reason for _, answer in traffic.told} <= {"max_tokens", "cancelled"}
    memory.assert_greedy(*((prompt, answer.token_ids) for prompt, answer in traffic.told))
    assert (stats.n_failed, stats.active_slots, stats.in_flight) == (0, 0, 0)
    assert stats.n_prefix_cache_tokens > 0
