"""Embeddings on the simulated model: every way to ask for them, and every way that goes wrong."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_batch import (
    ContextFullError,
    EmbeddingJob,
    Embeddings,
    EmptyPromptError,
    Engine,
    EngineClosedError,
    InferenceError,
    ModelLoadError,
    OptionError,
    PromptError,
    QueueFullError,
    RequestCancelledError,
    RequestTimeoutError,
    TextTooLongError,
    UnsupportedError,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SIM = "sim:?pass_ms=0&row_ms=0"
SLOW = "sim:?pass_ms=20&row_ms=0"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(SIM, n_ctx=4096) as engine:
        yield engine


def lists(found: Embeddings) -> list[list[float]]:
    return [vector.tolist() for vector in found.vectors]


def test_each_kind_of_input_gives_a_vector_for_each_text(engine: Engine) -> None:
    one = engine.embed("Once upon a time").result()
    assert (len(one.vectors), len(one.vectors[0]), one.n_embd, one.pooling) == (1, 16, 16, "mean")
    tokens = engine.model.tokenize("Once upon a time")
    assert one.n_tokens == (len(tokens),)
    assert one.usage == Usage(len(tokens), 0, 0)
    assert one.timings.total_ms >= one.timings.queue_ms >= 0
    two = engine.embed(["Once upon a time", "there was"]).result()
    assert two.vectors[0] == one.vectors[0] != two.vectors[1]
    assert engine.embed(tokens).result().vectors == one.vectors
    assert engine.embed(("Once upon a time", "there was")).result().vectors == two.vectors
    assert engine.embed([tokens, engine.model.tokenize("there was")]).result().vectors == two.vectors
    ids: Any = np.array(tokens)
    matrix: Any = np.stack([ids, ids])
    assert engine.embed(ids).result().vectors == one.vectors
    assert engine.embed([ids, ids]).result().vectors == (*one.vectors, *one.vectors)
    assert engine.embed(matrix).result().vectors == (*one.vectors, *one.vectors)
    assert engine.embed(range(5, 9)).result().n_tokens == (4,)


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40), min_size=1, max_size=6)
)
@settings(max_examples=40, deadline=None)
def test_a_text_has_the_same_vector_alone_and_in_any_company(engine: Engine, texts: list[str]) -> None:
    together = engine.embed(texts)
    alone = [engine.embed(text) for text in texts]
    assert lists(together.result()) == [lists(job.result())[0] for job in alone]


@pytest.mark.parametrize(
    "options",
    [
        {"pooling": "rank"},
        {"pooling": 1},
        {"normalize": "l2"},
        {"normalize": -2},
        {"normalize": 2.0},
        {"normalize": []},
        {"priority": "high"},
        {"timeout": -1},
        {"queue_timeout": float("nan")},
        {"max_tokens": 5},
        {"poling": "mean"},
        {"pooling": "mean", "pooling_type": "mean"},
    ],
)
def test_a_wrong_option_is_an_error_of_the_call(engine: Engine, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        engine.embed("a", **options)


@pytest.mark.parametrize("empty", ["", [], (), [""], ["a", ""], [[]], [[1], []]])
def test_what_has_no_tokens_is_empty(engine: Engine, empty: Any) -> None:
    with pytest.raises(EmptyPromptError) as caught:
        engine.embed(empty).result()
    assert caught.value.request_id is not None


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, 5, 1.5, b"bytes", {"a": 1}, {"a", "b"}, object(), iter(["a"])),
        *([1, "a"], ["a", 1], ["a", None], [[1], "a", {}], [1.5], [True], ["a", b"b"]),
        *(["\ud800"], [-1], [2**40], [[1], [-1]], [[[1]]], range(2**40)),
    ],
    ids=repr,
)
def test_what_is_no_text_is_an_error_of_the_request(engine: Engine, wrong: Any) -> None:
    job = engine.embed(wrong)
    with pytest.raises(PromptError):
        job.result()
    assert isinstance(job.outcome(), PromptError)
    assert len(engine.embed("a").result().vectors) == 1


def test_an_error_names_the_text(engine: Engine) -> None:
    with pytest.raises(PromptError, match="text 2"):
        engine.embed(["a", "b", "\ud800"]).result()


def test_a_text_that_is_too_long_is_refused_with_both_numbers(engine: Engine) -> None:
    assert engine.embed([7] * 4096).result().n_tokens == (4096,)
    with pytest.raises(TextTooLongError, match=r"text 1 .* 4097 tokens; at most 4096 .*n_ctx") as caught:
        engine.embed([[1, 2], [7] * 4097]).result()
    error = caught.value
    assert (error.n_prompt_tokens, error.n_ctx, error.index, error.retryable) == (4097, 4096, 1, False)
    assert isinstance(error, ContextFullError)
    assert pickle.loads(pickle.dumps(error)).index == 1


def test_a_model_that_cannot_embed_says_so_and_goes_on_generating() -> None:
    with Engine(f"{SIM}&n_embd=0") as engine:
        with pytest.raises(UnsupportedError, match="no embeddings"):
            engine.embed("a").result()
        assert engine.generate("a", max_tokens=2).result().usage.generated_tokens == 2


def test_a_model_that_only_embeds_says_so_and_goes_on_embedding() -> None:
    with Engine(f"{SIM}&encoder=1", n_ubatch=64) as engine:
        for job in (engine.generate("a"), engine.chat("a"), engine.stream("a")):
            with pytest.raises(UnsupportedError, match="no text"):
                job.result()
        with pytest.raises(TextTooLongError, match=r"65 tokens; at most 64 .*n_ubatch"):
            engine.embed([7] * 65).result()
        assert len(engine.embed([[7] * 64, [8] * 3, [9] * 64]).result().vectors) == 3


def test_asyncio_awaits_gathers_and_cancels(engine: Engine) -> None:
    async def main() -> None:
        jobs = [engine.embed([str(n), "x"]) for n in range(20)]
        found = await asyncio.gather(*jobs)
        assert [len(one.vectors) for one in found] == [2] * 20
        task = asyncio.create_task(engine.embed("a"))
        assert (await task).n_embd == 16
        assert await jobs[0] == found[0]

    asyncio.run(main())


def test_cancelling_the_last_task_that_waits_cancels_the_request() -> None:
    async def main(engine: Engine) -> None:
        job = engine.embed([[7] * 4000] * 50)
        task = asyncio.create_task(job)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(RequestCancelledError):
            await job
        assert job.cancelled()

    with Engine(SLOW, n_ctx=4096) as engine:
        asyncio.run(main(engine))
        assert engine.stats().n_cancelled == 1


def test_many_threads_get_each_their_own(engine: Engine) -> None:
    expected = {text: engine.embed(text).result().vectors[0] for text in map(str, range(20))}

    def ask(seed: int) -> bool:
        texts = [str((seed * 7 + i) % 20) for i in range(5)]
        return engine.embed(texts).result().vectors == tuple(expected[text] for text in texts)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(60)))


def test_generation_beside_it_says_what_it_says_alone() -> None:
    with Engine("sim:?pass_ms=1&row_ms=0", n_ctx=4096) as engine:
        alone = engine.generate("Once", max_tokens=60, seed=1).result().text
        generation = engine.generate("Once", max_tokens=60, seed=1, cache_prompt=False)
        jobs = [engine.embed([[n] * 300, [n] * 10]) for n in range(1, 20)]
        assert generation.result().text == alone
        assert [len(job.result().vectors) for job in jobs] == [2] * 19
        stats = engine.stats()
    assert (stats.n_embedded_texts, stats.n_embedded_tokens) == (38, 19 * 310)
    assert (stats.n_submitted, stats.n_finished, stats.n_failed) == (21, 21, 0)


def test_a_cancelled_job_has_no_vectors_and_harms_nobody() -> None:
    with Engine(SLOW, n_ctx=4096) as engine:
        running, waiting, other = (engine.embed([[n] * 2000] * 3) for n in (1, 2, 3))
        while engine.stats().n_ticks == 0:
            threading.Event().wait(0.005)
        for job in (running, waiting):
            job.cancel()
            with pytest.raises(RequestCancelledError):
                job.result(timeout=30)
            assert job.cancelled()
            job.cancel()
        engine.cancel(other.request_id)
        with pytest.raises(RequestCancelledError):
            other.result(timeout=30)
        assert len(engine.embed("a").result().vectors) == 1


def test_dropping_a_job_cancels_it_and_holding_one_keeps_the_engine() -> None:
    with Engine(SLOW, n_ctx=4096) as engine:
        engine.embed([[7] * 2000] * 50)
        gc.collect()
        while engine.stats().n_cancelled == 0:
            threading.Event().wait(0.005)
        job = engine.embed("a")
        assert isinstance(job, EmbeddingJob)
        assert repr(job).startswith(f"<EmbeddingJob {job.request_id} ")
        with pytest.raises(TypeError):
            pickle.dumps(job)
    job = Engine(SIM).embed("a")
    assert len(job.result().vectors) == 1


def test_waiting_with_a_timeout_only_ends_the_wait() -> None:
    with Engine(SLOW) as engine:
        job = engine.embed("a")
        with pytest.raises(TimeoutError):
            job.result(timeout=0.001)
        assert len(job.result().vectors) == 1


def test_time_limits_end_a_job_and_say_which() -> None:
    with Engine(SLOW, n_ctx=4096) as engine:
        late = engine.embed([[7] * 4000] * 20, timeout=0.1)
        queued = engine.embed("a", queue_timeout=0.05, priority=1)
        for job, option in ((late, "timeout"), (queued, "queue_timeout")):
            with pytest.raises(RequestTimeoutError) as caught:
                job.result()
            assert (caught.value.option, caught.value.completion) == (option, None)


def test_a_full_queue_refuses_or_waits() -> None:
    with Engine("sim:?pass_ms=50", n_parallel=1, max_queue=2) as engine:
        jobs = [engine.embed(["a"] * 100) for _ in range(4)]
        with pytest.raises(QueueFullError):
            jobs[3].result()
        assert all(len(job.result().vectors) == 100 for job in jobs[:3])
    with Engine(SIM, n_parallel=1, max_queue=2, queue_full="wait") as engine:
        jobs = [engine.embed(["a"] * 10) for _ in range(30)]
        assert all(len(job.result().vectors) == 10 for job in jobs)


def test_urgent_jobs_go_first_and_a_small_one_does_not_wait_for_a_large_one() -> None:
    with Engine("sim:?pass_ms=5&row_ms=0", n_ctx=4096) as engine:
        ended: list[int] = []
        with engine.subscribe(lambda e: ended.append(e.metadata["request_id"]), events=["request.done"]):
            large = engine.embed([[7] * 500] * 60)
            small = engine.embed([[8] * 500] * 2)
            urgent = engine.embed([[9] * 500] * 10, priority=-1)
            large.result()
            engine.close(drain=True)
        assert ended == [urgent.request_id, small.request_id, large.request_id]


def test_texts_queue_while_the_model_loads() -> None:
    engine = Engine("sim:?load_ms=150&pass_ms=0&row_ms=0")
    jobs = [engine.embed(["a", "b"]), engine.embed([1, 2, 3]), engine.embed(""), engine.embed("a", timeout=0.01)]
    given_up = engine.embed("a")
    given_up.cancel()
    with pytest.raises(RequestCancelledError):
        given_up.result()
    assert len(jobs[0].result().vectors) == 2
    assert jobs[1].result().n_tokens == (3,)
    with pytest.raises(EmptyPromptError):
        jobs[2].result()
    with pytest.raises(RequestTimeoutError):
        jobs[3].result()
    engine.close()


def test_a_failed_load_and_a_closed_engine_fail_each_job() -> None:
    engine = Engine("sim:?load_ms=20&load_error=broken")
    with pytest.raises(ModelLoadError, match="broken"):
        engine.embed("a").result()
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.embed("a").result()


def test_closing_cancels_and_draining_serves() -> None:
    engine = Engine(SLOW, n_ctx=4096)
    job = engine.embed([[7] * 4000] * 50)
    engine.wait_ready()
    engine.close()
    with pytest.raises(RequestCancelledError):
        job.result()
    with Engine(SLOW, n_ctx=4096) as engine:
        job = engine.embed([[7] * 500] * 4)
    assert len(job.result().vectors) == 4


def test_faults_of_passes_are_retried_and_what_fails_for_good_is_an_error() -> None:
    with Engine(f"{SIM}&fail=200&kv_full=100&seed=3") as engine:
        jobs = [engine.embed([str(n), "x"]) for n in range(60)]
        ended = []
        for job in jobs:
            try:
                ended.append(len(job.result().vectors))
            except InferenceError as error:
                ended.append(0 if error.retryable else -1)
    assert ended.count(2) > 20
    assert set(ended) <= {0, 2}


def test_its_events_have_the_mode_and_the_tokens_of_all_texts() -> None:
    heard: list[tuple[str, Any, Any]] = []
    with (
        Engine(SIM) as engine,
        engine.subscribe(
            lambda e: heard.append((e.name, e.metadata.get("mode"), e.metadata.get("seq_id", "-"))),
            events=["request.*", "tick"],
        ),
    ):
        engine.embed([[1] * 5, [2] * 6]).result()
        engine.close(drain=True)
    assert heard == [
        ("request.queued", "embed", "-"),
        ("request.start", "embed", None),
        ("tick", None, "-"),
        ("request.done", "embed", None),
    ]
