"""One request, as a synchronous caller holds it."""

from __future__ import annotations

import pickle
import threading
import time

import pytest
from llama_batch import (
    Chunk,
    Completion,
    ContextFullError,
    EmptyPromptError,
    Engine,
    InferenceError,
    PromptError,
    QueueFullError,
    RequestTimeoutError,
)

SLOW = "sim:?pass_ms=20"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine("sim:", n_parallel=4)


def test_a_completion_says_what_came_and_why_it_ended(engine: Engine) -> None:
    done = engine.generate("Once upon a time", max_tokens=8, seed=7).result()
    assert isinstance(done, Completion)
    assert str(done) == done.text == engine.model.detokenize(done.token_ids)
    assert len(done.token_ids) == done.usage.generated_tokens == 8
    assert done.usage.prompt_tokens == len(engine.model.tokenize("Once upon a time"))
    assert done.usage.total_tokens == done.usage.prompt_tokens + 8
    assert (done.finish_reason, done.seed, done.choices) == ("max_tokens", 7, (done,))
    assert 0.0 < done.timings.ttft_ms <= done.timings.total_ms


def test_a_stream_gives_the_text_and_the_tokens_of_the_completion(engine: Engine) -> None:
    generation = engine.stream("Tell me a story", max_tokens=40)
    chunks = list(generation)
    done = generation.result()
    assert "".join(chunks) == done.text
    assert tuple(t for chunk in chunks for t in chunk.token_ids) == done.token_ids
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert all(type(chunk) is Chunk for chunk in chunks)


def test_chunks_are_text_and_survive_pickling() -> None:
    chunk = Chunk("abc", 3, (1, 2))
    again = pickle.loads(pickle.dumps(chunk))
    assert again == "abc"
    assert (again.index, again.token_ids, again.logprobs) == (3, (1, 2), None)


def test_characters_of_several_tokens_come_whole(engine: Engine) -> None:
    whole = 0
    for seed in range(20):
        # The last token may be the first part of a character that never ends.
        *chunks, _ = engine.stream("emoji", max_tokens=30, seed=seed)
        assert not any("\ufffd" in chunk for chunk in chunks)
        whole += sum("🦙" in chunk for chunk in chunks)
    assert whole > 0


def test_the_same_seed_gives_the_same_text(engine: Engine) -> None:
    first, second = (engine.generate("dice", max_tokens=20, seed=5).result().text for _ in range(2))
    other = engine.generate("dice", max_tokens=20, seed=6).result().text
    assert first == second != other


def test_token_ids_and_text_give_the_same(engine: Engine) -> None:
    tokens = engine.model.tokenize("the same")
    options = {"max_tokens": 10, "temp": 0.0}
    text = engine.generate("the same", max_tokens=10, temp=0.0).result().text
    for prompt in (tokens, tuple(tokens)):
        assert engine.generate(prompt, max_tokens=10, temp=0.0).result().text == text, options


def test_numpy_token_ids_are_taken(engine: Engine) -> None:
    numpy = pytest.importorskip("numpy")
    tokens = numpy.array(engine.model.tokenize("the same"), dtype=numpy.int64)
    assert engine.generate(tokens, max_tokens=3).result().usage.prompt_tokens == len(tokens)


def test_requests_run_beside_each_other_from_many_threads(engine: Engine) -> None:
    texts: dict[int, str] = {}

    def work(i: int) -> None:
        texts[i] = engine.generate(f"thread {i}", max_tokens=10, seed=i).result().text

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = {i: engine.generate(f"thread {i}", max_tokens=10, seed=i).result().text for i in range(16)}
    assert texts == alone


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ("", EmptyPromptError),
        ([], EmptyPromptError),
        ([True, False], PromptError),
        ([1, "2"], PromptError),
        ([1, 2.0], PromptError),
        ([10**30], PromptError),
        ([-1], PromptError),
        ([100_000], PromptError),
        ("lone \ud800 surrogate", PromptError),
        (None, PromptError),
        (12, PromptError),
        (b"bytes", PromptError),
        ({"role": "user"}, PromptError),
        ([1] * 20_000, ContextFullError),
    ],
)
def test_a_wrong_prompt_has_a_typed_error_and_the_engine_goes_on(
    engine: Engine, prompt: object, error: type[Exception]
) -> None:
    generation = engine.generate(prompt)  # type: ignore[call-overload]
    with pytest.raises(error) as caught:
        generation.result(timeout=10)
    assert caught.value.request_id == generation.request_id  # type: ignore[attr-defined]
    assert engine.generate("still here", max_tokens=1).result(timeout=10).finish_reason == "max_tokens"


def test_a_prompt_that_never_fits_says_by_how_much(engine: Engine) -> None:
    with pytest.raises(ContextFullError) as caught:
        engine.generate([1] * 9000).result()
    assert (caught.value.n_prompt_tokens, caught.value.n_ctx) == (9000, 8192)


def test_a_nul_in_the_prompt_is_text_like_any_other(engine: Engine) -> None:
    assert engine.generate("a\0b", max_tokens=1).result().usage.prompt_tokens == 3


def test_result_only_stops_waiting(engine: Engine) -> None:
    with Engine(SLOW) as slow:
        generation = slow.generate("x", max_tokens=50)
        with pytest.raises(TimeoutError):
            generation.result(timeout=0.001)
        assert not generation.done()
        assert generation.result().finish_reason == "max_tokens"
        assert generation.done()


def test_cancel_keeps_the_text_so_far() -> None:
    with Engine(SLOW) as slow:
        generation = slow.stream("x", max_tokens=1000)
        first = next(generation)
        generation.cancel()
        done = generation.result(timeout=10)
        assert done.finish_reason == "cancelled"
        assert done.text.startswith(first)
        generation.cancel()
        slow.cancel(generation.request_id)
        slow.cancel(10**9)
        assert generation.cancelled()
        assert generation.result() == done


def test_dropping_or_closing_a_generation_cancels_it() -> None:
    with Engine(SLOW, n_parallel=1) as slow:
        slow.generate("dropped", max_tokens=10_000)
        closed = slow.generate("closed", max_tokens=10_000)
        closed.close()
        for chunk in slow.stream("left", max_tokens=10_000):
            assert chunk
            break
        assert slow.generate("served", max_tokens=1).result(timeout=10).finish_reason == "max_tokens"
        assert slow.stats().n_cancelled >= 1


def test_a_generation_keeps_its_engine_open() -> None:
    assert Engine("sim:").generate("x", max_tokens=3).result(timeout=10).finish_reason == "max_tokens"


def test_one_request_too_many_is_refused() -> None:
    with Engine(SLOW, n_parallel=1, max_queue=2) as slow:
        held = [slow.generate("x", max_tokens=50) for _ in range(3)]
        with pytest.raises(QueueFullError) as caught:
            slow.generate("one too many").result(timeout=10)
        assert (caught.value.option, caught.value.limit) == ("max_queue", 2)
        assert caught.value.retryable
        assert not any(g.done() for g in held)
        for generation in held:
            generation.cancel()


def test_a_full_queue_can_be_waited_for() -> None:
    with Engine("sim:?pass_ms=1", n_parallel=1, max_queue=1, queue_full="wait") as engine:
        done = [engine.generate("x", max_tokens=3) for _ in range(10)]
        assert all(g.result(timeout=30).finish_reason == "max_tokens" for g in done)


def test_a_time_out_raises_with_what_was_generated() -> None:
    with Engine(SLOW) as slow:
        with pytest.raises(RequestTimeoutError) as caught:
            slow.generate("x", max_tokens=10_000, timeout=0.3).result()
        partial = caught.value.completion
        assert partial is not None
        assert partial.finish_reason == "timeout"
        assert 0 < len(partial.token_ids) < 10_000
        assert (caught.value.option, caught.value.limit_s) == ("timeout", 0.3)
        assert isinstance(caught.value, TimeoutError)


def test_a_failed_stream_raises_once_after_its_chunks() -> None:
    with Engine("sim:?pass_ms=5") as slow:
        stream = slow.stream("x", max_tokens=10_000, timeout=0.3)
        chunks = []
        with pytest.raises(RequestTimeoutError) as caught:  # noqa: PT012
            for chunk in stream:
                chunks.append(chunk)  # noqa: PERF402 - a list would lose what came before the error
        assert caught.value.completion is not None
        assert "".join(chunks) == caught.value.completion.text
        assert list(stream) == []
        with pytest.raises(RequestTimeoutError):
            stream.result()


def test_a_failing_model_fails_requests_and_not_the_engine() -> None:
    with Engine("sim:?fail_draw=1000") as broken:
        with pytest.raises(InferenceError):
            broken.generate("x").result(timeout=10)
        assert broken.state == "ready"


def test_a_stream_ends_at_the_models_end(engine: Engine) -> None:
    with Engine("sim:?eog_every=3") as short:
        done = short.generate("x", max_tokens=1000).result()
        assert done.finish_reason == "eog"
        assert len(done.token_ids) < 1000


def test_max_tokens_zero_only_reads_the_prompt(engine: Engine) -> None:
    done = engine.generate("x", max_tokens=0).result()
    assert (done.text, done.token_ids, done.finish_reason) == ("", (), "max_tokens")


def test_a_slow_reader_gets_all_text_in_fewer_chunks(engine: Engine) -> None:
    generation = engine.stream("slow reader", max_tokens=30)
    generation.result()
    time.sleep(0.01)
    chunks = list(generation)
    assert len(chunks) == 1
    assert len(chunks[0].token_ids) == 30


def test_chat_takes_text_and_messages(engine: Engine) -> None:
    by_text = engine.chat("Why?", max_tokens=5, temp=0).result()
    by_messages = engine.chat([{"role": "user", "content": "Why?"}], max_tokens=5, temp=0).result()
    assert by_text.text == by_messages.text


def test_repr_names_the_request_and_its_state(engine: Engine) -> None:
    generation = engine.generate("x", max_tokens=1)
    generation.result()
    assert repr(generation) == f"<Generation {generation.request_id} done>"
