"""Each kind of memory with a folder below: what an engine left is what the next one goes on from, and it is right."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models
from llama_batch import Engine, OptionError, SessionError
from test_memories import FOLLOW_UPS, GREEDY, N_PROMPT, Memory, ask, churn, follow_up, memory, models
from test_memories_pressure import Traffic

if TYPE_CHECKING:
    from pathlib import Path

    from llama_batch import Event
    from oracle import Oracle

__all__ = ["memory", "models"]  # fixtures are found by their names in the module


@pytest.mark.parametrize("kind", FOLLOW_UPS)
def test_what_follows_an_answer_of_another_engine_reuses_the_prompt(memory: Memory, kind: str, tmp_path: Path) -> None:
    prompt = memory.prompt(1)
    with memory.engine(n_parallel=2, n_ctx=2048, prompt_cache_dir=tmp_path) as engine:
        first = ask(engine, prompt, cache_scope="a")
    second = follow_up(memory, kind, prompt, first.token_ids)
    with memory.engine(n_parallel=2, n_ctx=2048, prompt_cache_dir=tmp_path) as engine:
        assert ask(engine, second, cache_scope="b").usage.prefix_cache_tokens == 0
        answer = ask(engine, second, cache_scope="a")
    memory.assert_greedy((prompt, first.token_ids), (second, answer.token_ids))
    assert answer.usage.prefix_cache_tokens >= N_PROMPT - 1


def test_what_was_driven_out_of_ram_comes_back_from_disk(memory: Memory, tmp_path: Path) -> None:
    prompt = memory.prompt(1)
    with memory.engine(n_parallel=2, n_ctx=512, ram_mb=1, prompt_cache_dir=tmp_path) as engine:
        first = ask(engine, prompt)
        for round_ in range(5):
            churn(memory, engine, cache_scope=round_)
        second = follow_up(memory, "next-turn", prompt, first.token_ids)
        answer = ask(engine, second)
        assert engine.stats().ram_cache_bytes <= 1 << 20
    memory.assert_greedy((second, answer.token_ids))
    assert answer.usage.prefix_cache_tokens >= N_PROMPT - 1


def test_any_order_of_requests_over_two_engines_gives_right_texts(memory: Memory, tmp_path: Path) -> None:
    traffic, told = Traffic(memory, 11), Counter[str]()

    def hear(event: Event) -> None:
        told[event.metadata["op"]] += int(event.measurements["tokens"])

    for _ in range(2):
        tiers: dict[str, Any] = {"ram_mb": 1, "prompt_cache_dir": tmp_path, "prompt_cache_dir_mb": 3}
        with memory.engine(n_parallel=4, n_ctx=768, chunk_size=64, **tiers) as engine:
            with engine.subscribe(hear, events=["disk_cache"]):
                traffic.run(engine)
            stats = engine.stats()
        assert (stats.n_failed, stats.active_slots, stats.in_flight) == (0, 0, 0)
        assert 0 < stats.disk_cache_bytes <= 3 << 20
    memory.assert_greedy(*((prompt, answer.token_ids) for prompt, answer in traffic.told))
    assert min(told["save"], told["restore"]) > 0, told
    assert told["fail"] == 0


def test_a_conversation_with_a_real_model_outlives_its_engine(smollm2: Path, oracle: Oracle, tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_ctx": 4096, "n_parallel": 2, "prompt_cache_dir": tmp_path}
    story = " ".join(f"In the year {1900 + n} the town of Millbrook had {n * 37 % 91} bakers." for n in range(16))
    with Engine(smollm2, **options) as engine:
        prompt = engine.model.tokenize(story)
        first = engine.generate(prompt, **GREEDY).result()
        turn = [*prompt, *first.token_ids, *engine.model.tokenize(" In the year 1916 the town of")]
    with Engine(smollm2, **options) as engine:
        second = engine.generate(turn, **GREEDY).result()
        assert second.usage.prefix_cache_tokens >= len(prompt)
    oracle.assert_greedy([(turn, second.token_ids)])


def test_a_budget_that_holds_nothing_is_refused(smollm2: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a block of tokens takes 2 MiB at least"):
        Engine(smollm2, n_ctx=512, prompt_cache_dir=tmp_path, prompt_cache_dir_mb=1).wait_ready()


def test_a_state_of_a_longer_context_is_another_where_its_positions_are_turned_otherwise(tmp_path: Path) -> None:
    tiny_models.full(tmp_path / "long.gguf", original_context=1024)
    prompt = list(range(3, 200))

    def engine(n_ctx: int, **options: Any) -> Engine:
        return Engine(tmp_path / "long.gguf", n_ctx=n_ctx, n_parallel=1, n_threads=1, **options)

    folder: dict[str, Any] = {"prompt_cache_dir": tmp_path / "cache", "prompt_cache_ram_mb": 64}
    with engine(1024, **folder) as short:
        ask(short, prompt, session="tale")
        short.save_session("tale", tmp_path / "tale")
    with engine(2048, **folder) as long:
        with pytest.raises(SessionError, match="another model"):
            long.load_session(tmp_path / "tale")
        assert ask(long, prompt).usage.prefix_cache_tokens == 0
    for n_ctx in (512, 1024, 4096):
        with engine(n_ctx, **folder) as again:
            assert ask(again, prompt).usage.prefix_cache_tokens >= 192
