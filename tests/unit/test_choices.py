"""`n`: several answers to one prompt, which is read once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from llama_batch import Completion, Engine, OptionError, QueueFullError, RequestTimeoutError

SIM = "sim:?pass_ms=0&row_ms=0"
PROMPT = [65 + i % 26 for i in range(200)]


def ask(engine: Engine, **options: Any) -> Completion:
    return engine.generate(PROMPT, **{"max_tokens": 12, **options}).result(timeout=60)


def test_each_answer_is_what_its_seed_gives_alone() -> None:
    with Engine(SIM) as engine:
        done = ask(engine, n=3, seed=5)
        assert [c.index for c in done.choices] == [0, 1, 2]
        assert done.choices[0] is done
        assert [c.request_id - done.request_id for c in done.choices] == [0, 1, 2]
        assert done.seed == 5
        assert len({c.seed for c in done.choices}) == 3
        assert len({c.text for c in done.choices}) == 3
        for choice in done.choices:
            assert ask(engine, seed=choice.seed).text == choice.text
        assert ask(engine, n=3, seed=5).choices[2].text == done.choices[2].text


@pytest.mark.parametrize("cache", [True, False])
def test_the_prompt_is_computed_once(cache: bool) -> None:
    with Engine(SIM, n_parallel=8) as engine:
        done = ask(engine, n=5, cache_prompt=cache)
        assert [c.usage.prefix_cache_tokens for c in done.choices] == [0, *[199] * 4]
        assert engine.stats().n_prefill_tokens == 204
        again = ask(engine, n=2, cache_prompt=cache)
        assert (again.usage.prefix_cache_tokens > 0) == cache
        if not cache:
            assert engine.stats().cached_sequences == 0


def test_a_stream_tells_which_answer_each_chunk_is_of() -> None:
    with Engine(SIM) as engine:
        texts = ["", "", ""]
        for chunk in (stream := engine.stream(PROMPT, max_tokens=20, n=3, seed=1)):
            texts[chunk.choice] += chunk
        assert texts == [c.text for c in stream.result().choices]

    async def read() -> list[str]:
        texts = ["", "", ""]
        async with Engine(SIM) as engine:
            async for chunk in engine.stream(PROMPT, max_tokens=20, n=3, seed=1):
                texts[chunk.choice] += chunk
        return texts

    assert asyncio.run(read()) == texts


def test_more_answers_than_slots_come_one_after_the_other() -> None:
    with Engine(SIM, n_parallel=2) as engine:
        done = ask(engine, n=7)
        assert len(done.choices) == 7
        assert engine.stats().in_flight == 0


def test_a_queue_takes_all_answers_or_none() -> None:
    with Engine("sim:?pass_ms=5&row_ms=0", n_parallel=2, max_queue=3) as engine:
        running = engine.generate(PROMPT, max_tokens=200, n=3)
        with pytest.raises(QueueFullError):
            ask(engine, n=3)
        assert engine.stats().in_flight == 3
        assert len(ask(engine, n=2).choices) == 2
        running.cancel()
        running.result(timeout=60)
        assert engine.stats().in_flight == 0
        with pytest.raises(OptionError, match="at most 5 answers"):
            ask(engine, n=6)
        with pytest.raises(OptionError, match="at most 5 answers"):
            list(engine.map([PROMPT], n=6))
        assert len(ask(engine, n=5).choices) == 5


def test_a_queue_that_waits_takes_them_as_there_is_room() -> None:
    with Engine(SIM, n_parallel=2, max_queue=1, queue_full="wait") as engine:
        generations = [engine.generate(PROMPT, max_tokens=8, n=4) for _ in range(5)]
        assert [len(g.result(timeout=60).choices) for g in generations] == [4] * 5


def test_cancelling_ends_all_answers() -> None:
    with Engine("sim:?pass_ms=2&row_ms=0", n_parallel=2) as engine:
        running = engine.generate(PROMPT, max_tokens=2000, n=4)
        while engine.stats().active_slots < 2:
            time.sleep(0.005)
        engine.cancel(running.request_id + 1)
        done = running.result(timeout=60)
        assert {c.finish_reason for c in done.choices} == {"cancelled"}
        assert engine.stats().in_flight == 0


def test_dropping_the_generation_ends_all_answers() -> None:
    with Engine("sim:?pass_ms=2&row_ms=0", n_parallel=4) as engine:
        running = engine.generate(PROMPT, max_tokens=2000, n=4)
        while engine.stats().active_slots < 4:
            time.sleep(0.005)
        del running
        while engine.stats().in_flight:
            time.sleep(0.005)


def test_a_time_out_keeps_what_all_answers_had() -> None:
    with Engine("sim:?pass_ms=5&row_ms=0", n_parallel=4) as engine:
        with pytest.raises(RequestTimeoutError) as raised:
            ask(engine, n=3, max_tokens=2000, timeout=0.3)
        partial = raised.value.completion
        assert partial is not None
        assert len(partial.choices) == 3
        assert all(c.finish_reason == "timeout" and c.token_ids for c in partial.choices)
        assert len(ask(engine, n=2, max_tokens=2).choices) == 2


def test_a_time_out_while_the_model_loads_ends_all_answers() -> None:
    engine = Engine("sim:?pass_ms=0&row_ms=0&load_ms=600")
    waiting = engine.generate(PROMPT, n=3, timeout=0.1)
    with pytest.raises(RequestTimeoutError):
        waiting.result(timeout=60)
    with engine:
        assert engine.stats().in_flight == 0
        assert len(ask(engine, n=2).choices) == 2
