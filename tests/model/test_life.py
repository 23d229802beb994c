"""A real engine through its life: cancelled, late, full, closed, twice at once, and a thousand times over."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest
from llama_batch import Engine, QueueFullError, RequestTimeoutError


def test_breaking_out_of_a_stream_cancels_it_and_frees_its_slot(engine: Engine) -> None:
    stream = engine.stream("Count: 1, 2, 3,", max_tokens=2000, temp=0)
    for chunk in stream:
        if chunk.index >= 3:
            break
    stream.cancel()
    done = stream.result()
    assert done.finish_reason == "cancelled"
    assert 3 <= done.usage.generated_tokens < 50
    assert engine.generate("Hello", max_tokens=2).result().usage.generated_tokens > 0
    assert engine.stats().active_slots == 0


def test_a_timeout_keeps_what_was_generated_and_the_engine_serves_on(engine: Engine) -> None:
    with pytest.raises(RequestTimeoutError) as caught:
        engine.generate("Once upon a time", max_tokens=4000, timeout=0.5).result()
    assert caught.value.completion is not None
    assert caught.value.completion.usage.generated_tokens > 0
    with pytest.raises(RequestTimeoutError):
        engine.generate("Once upon a time", timeout=0.001).result()
    assert engine.generate("Hello", max_tokens=2).result().text


def test_a_full_queue_refuses_at_once_and_what_waits_completes(smollm2: Path) -> None:
    with Engine(smollm2, n_parallel=1, n_ctx=512, max_queue=1) as engine:
        first = engine.generate("One", max_tokens=40)
        second = engine.generate("Two", max_tokens=4)
        with pytest.raises(QueueFullError):
            engine.generate("Three", max_tokens=4).result()
        assert first.result().text
        assert second.result().text


def test_two_engines_serve_in_one_process(smollm2: Path) -> None:
    with Engine(smollm2, n_parallel=2, n_ctx=512) as one, Engine(smollm2, n_parallel=2, n_ctx=512) as other:
        answers = [e.generate("The capital of France is", max_tokens=5, temp=0) for e in (one, other, one, other)]
        assert len({answer.result().text for answer in answers}) == 1


def test_split_streams_serve_too(smollm2: Path) -> None:
    with Engine(smollm2, n_parallel=4, n_ctx=1024, kv_unified=False) as engine:
        answers = [engine.generate(f"{n} and {n} make", max_tokens=8, temp=0) for n in range(6)]
        assert all(answer.result().text for answer in answers)
        done = engine.generate("word " * 300, max_tokens=5)
        with pytest.raises(Exception, match="room for 256"):
            done.result()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_thousand_streams_opened_and_closed_leave_nothing_behind(engine: Engine) -> None:
    def cycle(n: int) -> None:
        for _ in range(n):
            stream = engine.stream("Count:", max_tokens=200)
            next(stream)
            stream.close()

    def resident_mb() -> float:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize() / 2**20

    def n_files() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    cycle(200)
    files, before = n_files(), resident_mb()
    cycle(1000)
    assert engine.generate("Hello", max_tokens=2).result().text
    assert resident_mb() - before < 16
    assert n_files() <= files
    stats = engine.stats()
    assert (stats.active_slots, stats.queue_depth, stats.in_flight) == (0, 0, 0)
