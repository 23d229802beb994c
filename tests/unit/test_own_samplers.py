"""Samplers of one's own: what they see, what they may answer, and that a bad one harms its own request alone."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from llama_batch import Engine, InferenceError, OptionError, RequestTimeoutError, Simulation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Logits = NDArray[np.float32]

SIM = "sim:?pass_ms=0&row_ms=0"
PROMPT = list(range(10, 30))


def likeliest(logits: Logits) -> int:
    return int(logits.argmax())


def test_a_sampler_draws_in_the_place_of_the_chain() -> None:
    seen = []

    def sampler(logits: Logits) -> int:
        seen.append((logits.shape, str(logits.dtype), threading.current_thread() is threading.main_thread()))
        return likeliest(logits)

    with Engine(SIM) as engine:
        plain = engine.generate(PROMPT, temp=0, max_tokens=12).result()
        done = engine.generate(PROMPT, temp=0, max_tokens=12, sampler=sampler).result()
        assert done.token_ids == plain.token_ids
        assert done.finish_reason == "max_tokens"
        assert seen == [((512,), "float32", False)] * 12
        numpys = engine.generate(PROMPT, temp=0, max_tokens=12, sampler=np.argmax).result()
        assert numpys.token_ids == plain.token_ids
        fixed = engine.generate(PROMPT, max_tokens=5, sampler=lambda _: 65).result()
        assert fixed.text == "AAAAA"


def test_none_has_the_chain_draw_from_what_is_left_in_the_array() -> None:
    def only_b(logits: Logits) -> None:
        logits[:] = -np.inf
        logits[66] = 0

    with Engine(SIM) as engine:
        assert engine.generate(PROMPT, max_tokens=4, sampler=only_b).result().text == "BBBB"
        plain = engine.generate(PROMPT, temp=0, max_tokens=9).result()
        assert engine.generate(PROMPT, temp=0, max_tokens=9, sampler=lambda _: None).result().text == plain.text


def test_rules_and_grammars_are_in_the_logits() -> None:
    allowed = []

    def sampler(logits: Logits) -> int:
        allowed.append(set(np.flatnonzero(logits > -np.inf).tolist()))
        return likeliest(logits)

    with Engine(SIM) as engine:
        done = engine.generate(PROMPT, choice=["ax", "bx"], sampler=sampler, logprobs=1).result()
        assert done.text in {"ax", "bx"}
        assert allowed == [{ord("a"), ord("b")}, {ord("x")}]
        assert done.logprobs is not None
        assert tuple(told.token_id for told in done.logprobs) == done.token_ids
        allowed.clear()
        engine.generate(PROMPT, max_tokens=1, banned_token_ids=[3, 4], ignore_eos=True, sampler=sampler).result()
        assert allowed == [set(range(512)) - {3, 4, 256}]


@pytest.mark.parametrize(
    ("sampler", "reason"),
    [
        (lambda _: 1 / 0, "division by zero"),
        (lambda _: -1, "may not be drawn"),
        (lambda _: 512, "may not be drawn"),
        (lambda _: 2**40, "the sampler raised"),
        (lambda _: "x", "must return a token or None"),
        (lambda _: True, "must return a token or None"),
        (lambda: 3, "the sampler raised"),
        (lambda _: 7, "may not be drawn"),
    ],
)
def test_a_bad_sampler_fails_its_request_alone(sampler: Any, reason: str) -> None:
    with Engine(SIM) as engine:
        other = engine.generate(PROMPT, max_tokens=50)
        with pytest.raises(InferenceError, match=reason):
            engine.generate(PROMPT, max_tokens=5, sampler=sampler, banned_token_ids=[7]).result(timeout=60)
        assert len(other.result(timeout=60).token_ids) == 50
        assert engine.stats().active_slots == 0


def test_a_slow_sampler_keeps_nobody_else_waiting() -> None:
    with Engine(SIM) as engine:
        release = threading.Event()

        def slow(logits: Logits) -> int:
            release.wait(30)
            return likeliest(logits)

        held = engine.generate(PROMPT, max_tokens=2, sampler=slow)
        for _ in range(20):
            assert len(engine.generate(PROMPT, max_tokens=20).result(timeout=60).token_ids) == 20
        assert not held.done()
        release.set()
        assert len(held.result(timeout=60).token_ids) == 2


def test_a_sampler_that_hangs_runs_into_the_stall_limit_and_can_be_cancelled() -> None:
    release = threading.Event()

    def hang(_: Logits) -> int:
        release.wait(60)
        return 65

    with Engine(SIM) as engine:
        with pytest.raises(RequestTimeoutError) as raised:
            engine.generate(PROMPT, sampler=hang, stall_timeout=0.2).result(timeout=60)
        assert raised.value.option == "stall_timeout"
        running = engine.generate(PROMPT, sampler=hang)
        while engine.stats().active_slots == 0:
            time.sleep(0.005)
        running.cancel()
        assert running.result(timeout=60).finish_reason == "cancelled"
        assert engine.stats().active_slots == 0
        release.set()


def test_requests_with_samplers_yield_their_cells_and_go_on() -> None:
    with Engine(SIM, n_ctx=256, n_parallel=4) as engine:
        plain = [engine.generate([i, *PROMPT], temp=0, max_tokens=120) for i in range(4)]
        texts = [g.result(timeout=60).text for g in plain]
        own = [engine.generate([i, *PROMPT], temp=0, max_tokens=120, sampler=likeliest) for i in range(4)]
        assert [g.result(timeout=120).text for g in own] == texts


def test_several_answers_streams_and_maps_ask_it_too() -> None:
    with Engine(SIM) as engine:
        done = engine.generate(PROMPT, max_tokens=3, n=3, sampler=lambda _: 65).result(timeout=60)
        assert [choice.text for choice in done.choices] == ["AAA"] * 3
        assert "".join(engine.stream(PROMPT, max_tokens=3, sampler=lambda _: 66)) == "BBB"
        assert [str(c) for c in engine.map([[1], [2]], max_tokens=2, sampler=lambda _: 67)] == ["CC", "CC"]

    async def ask() -> str:
        async with Engine(SIM) as engine:
            return str(await engine.generate(PROMPT, max_tokens=2, sampler=lambda _: 68))

    assert asyncio.run(ask()) == "DD"


def test_a_sampler_is_let_go_of_with_its_request() -> None:
    class Sampler:
        def __call__(self, logits: Logits) -> int:
            return likeliest(logits)

    sampler = Sampler()
    known = weakref.ref(sampler)
    with Engine(SIM) as engine:
        engine.generate(PROMPT, max_tokens=2, sampler=sampler).result()
        with pytest.raises(OptionError):
            engine.generate(PROMPT, sampler=sampler, max_tokens=-1)
        list(engine.map([[1]], max_tokens=1, sampler=sampler))
        del sampler
        for _ in range(100):
            gc.collect()
            if known() is None:
                break
            time.sleep(0.02)
        assert known() is None


def test_what_is_no_callable_is_refused() -> None:
    with Engine(SIM) as engine, pytest.raises(OptionError, match="sampler must be a callable, not int"):
        engine.generate(PROMPT, sampler=3)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="sampler"):
        Simulation().submit(PROMPT, sampler=likeliest)
