"""Prefixes that are shared, awaited, saved and restored on a real model: the answers stay what the model would say."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from llama_batch import Engine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from llama_batch import Completion, Event
    from oracle import Oracle

GREEDY: dict[str, Any] = {"temp": 0, "max_tokens": 16}
STORY = " ".join(f"In the year {1900 + n} the town of Millbrook had {n * 37 % 91} bakers." for n in range(60))


def about(engine: Engine, start: int, n_tokens: int) -> list[int]:
    """A prompt of so many tokens that shares nothing with one of another start."""
    text = f"{start}: " + ", ".join(str(n) for n in range(start, start + n_tokens))
    return engine.model.tokenize(text)[:n_tokens]


def sources(events: list[Event]) -> Counter[str]:
    return Counter(e.metadata["prefix_source"] for e in events if e.name == "request.start")


def tokens_of(prompts: list[list[int]], answers: Sequence[Completion]) -> list[tuple[list[int], tuple[int, ...]]]:
    return [(prompt, answer.token_ids) for prompt, answer in zip(prompts, answers, strict=True)]


def test_a_burst_with_a_common_beginning_computes_it_once(smollm2: Path, oracle: Oracle) -> None:
    with Engine(smollm2, n_parallel=8) as engine:
        common = engine.model.tokenize(STORY)[:200]
        prompts = [[*common, *engine.model.tokenize(f" Question {n}: who was the baker?")] for n in range(8)]
        answers = [g.result() for g in [engine.generate(prompt, **GREEDY) for prompt in prompts]]
        computed = engine.stats().n_prefill_tokens
    assert computed < 200 + sum(len(prompt) - 180 for prompt in prompts)
    assert sum(answer.usage.prefix_cache_tokens >= 200 for answer in answers) == 7
    oracle.assert_greedy(tokens_of(prompts, answers)[-2:])


def test_what_was_driven_out_comes_back_from_ram_for_its_scope_alone(smollm2: Path, oracle: Oracle) -> None:
    with Engine(smollm2, n_ctx=512, n_parallel=1, prompt_cache_ram_mb=200) as engine:
        prompts = [about(engine, start, 300) for start in (1000, 5000)]
        for prompt in prompts:
            engine.generate(prompt, cache_scope="a", **GREEDY).result()
        assert engine.stats().ram_cache_entries >= 4
        events: list[Event] = []
        with engine.subscribe(events.append):
            other = engine.generate(prompts[0], cache_scope="b", **GREEDY).result()
            again = engine.generate(prompts[0], cache_scope="a", **GREEDY).result()
            engine.close(drain=True)
    assert other.usage.prefix_cache_tokens == 0
    assert again.usage.prefix_cache_tokens == 299
    assert sources(events) == {"none": 1, "ram": 1}
    assert any(e.name == "ram_cache" and e.metadata["op"] == "restore" for e in events)
    oracle.assert_greedy(tokens_of([prompts[0]] * 2, [other, again]))


def test_chats_that_do_not_fit_the_kv_cache_together_reuse_their_history(smollm2: Path, oracle: Oracle) -> None:
    with Engine(smollm2, n_ctx=512, n_parallel=2, prompt_cache_ram_mb=200) as engine:
        histories = [about(engine, 1000 * chat, 150) for chat in range(1, 7)]
        told: list[tuple[list[int], tuple[int, ...]]] = []
        for turn in range(3):
            asked = [[*history, *engine.model.tokenize(f" And {turn}?")] for history in histories]
            running = [engine.generate(p, session=chat, **GREEDY) for chat, p in enumerate(asked)]
            answers = [generation.result() for generation in running]
            told += tokens_of(asked, answers)
            if turn > 0:
                assert all(a.usage.prefix_cache_tokens >= 128 for a in answers), [a.usage for a in answers]
            histories = [[*p, *a.token_ids] for p, a in zip(asked, answers, strict=True)]
    oracle.assert_greedy(told[-2:])  # each takes seconds, token by token


def test_a_tier_of_nothing_holds_nothing(smollm2: Path) -> None:
    with Engine(smollm2, n_ctx=512, n_parallel=1, prompt_cache_ram_mb=0) as engine:
        for start in (1000, 5000, 1000):
            answer = engine.generate(about(engine, start, 300), **GREEDY).result()
            assert answer.usage.prefix_cache_tokens == 0
        assert (engine.stats().ram_cache_entries, engine.stats().ram_cache_bytes) == (0, 0)
