"""Events: their fields, their readers, and what a bad reader does to the engine."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import llama_batch
import pytest
from llama_batch import Engine, Event, OptionError
from llama_batch.telemetry import EVENT_NAMES

if TYPE_CHECKING:
    from llama_batch import StrategyView

DONE = {
    "prompt_tokens",
    "generated_tokens",
    "draft_tokens",
    "accepted_tokens",
    "duration_ms",
    "ttft_ms",
    "queue_ms",
    "prompt_eval_rate",
    "generation_rate",
    "prefix_cache_tokens",
    "prefix_cache_ratio",
}
REQUEST = {"engine", "request_id", "seq_id", "mode", "session", "prefix_source", "prefix_reason"}


def run(engine: Engine, *names: str, **options: Any) -> list[Event]:
    """The events of one request."""
    events = engine.events(events=names or None)
    generation = engine.generate("a prompt", **options)
    with suppress(llama_batch.LlamaBatchError):
        generation.result()
    engine.close(drain=True)
    return list(events)


def test_each_event_has_the_fields_of_the_specification() -> None:
    events = run(Engine("sim:", name="e"), max_tokens=3, session="s")
    by_name = {event.name: event for event in events}
    assert [e.name for e in events if e.name != "tick"] == ["request.queued", "request.start", "request.done"]
    tick, start, done = by_name["tick"], by_name["request.start"], by_name["request.done"]
    assert set(tick.measurements) == {
        *("batch_size", "decode_tokens", "draft_tokens", "prefill_tokens", "active_slots", "queue_depth", "eval_ms"),
        *("sample_ms", "forecast_ms"),
    }
    assert set(by_name["request.queued"].metadata) == {"engine", "request_id", "mode", "session"}
    assert set(start.measurements) == {"prompt_tokens", "prefix_cache_tokens", "queue_ms"}
    assert set(start.metadata) == REQUEST
    assert set(done.measurements) == DONE
    assert set(done.metadata) == {*REQUEST, "stop_reason"}
    assert (done.metadata["stop_reason"], done.metadata["mode"]) == ("max_tokens", "generate")
    assert (done.metadata["session"], done.metadata["prefix_source"]) == ("s", "none")
    assert done.metadata["engine"].name == "e"
    assert done.measurements["generated_tokens"] == 3
    assert all(first.at_s <= second.at_s for first, second in pairwise(events))


def test_why_a_prefix_was_reused_or_not_is_told() -> None:
    tokens = list(range(10, 60))
    heard: list[tuple[str, str]] = []
    with Engine("sim:?pass_ms=0&row_ms=0", n_parallel=1) as engine:

        def hear(event: Event) -> None:
            heard.append((event.metadata["prefix_source"], event.metadata["prefix_reason"]))

        with engine.subscribe(hear, events=["request.start"]):
            engine.generate(tokens, session="a", max_tokens=3).result()
            engine.generate(tokens, session="a", max_tokens=3).result()
            engine.generate(tokens, session="b", max_tokens=3).result()
            engine.generate(tokens, cache_prompt=False, max_tokens=3).result()
            engine.generate([99, 98], max_tokens=3).result()
            engine.close(drain=True)
    assert heard == [
        *(("none", "no_match"), ("own", "session"), ("donor", "longest"), ("none", "off"), ("none", "no_match"))
    ]


def test_rates_count_only_what_was_computed() -> None:
    with Engine("sim:") as engine:
        engine.generate("a prompt", max_tokens=1).result()
        (done,) = run(engine, "request.done", max_tokens=1)
    assert done.measurements["prefix_cache_ratio"] > 0.5
    computed = done.measurements["prompt_tokens"] - done.measurements["prefix_cache_tokens"]
    prefill_s = (done.measurements["ttft_ms"] - done.measurements["queue_ms"]) / 1e3
    assert done.measurements["prompt_eval_rate"] * prefill_s == pytest.approx(computed)


def test_who_listens_after_a_result_hears_nothing_of_it() -> None:
    with Engine("sim:?pass_ms=0") as engine:
        streams = []
        for _ in range(300):
            engine.generate("x", max_tokens=1).result()
            streams.append(engine.events(events=["request.done"]))
        engine.close(drain=True)
        assert [len(list(events)) for events in streams] == list(range(299, -1, -1))


async def hear_async(event: Event) -> None:
    """No subscriber."""


def test_wrong_subscriptions_are_refused_at_once() -> None:
    with Engine("sim:") as engine:
        for subscribe in (engine.subscribe, llama_batch.subscribe):
            with pytest.raises(OptionError, match="callable"):
                subscribe(5)  # type: ignore[arg-type]
            with pytest.raises(OptionError, match="async for"):
                subscribe(hear_async)
            for events in (5, [5], ["tick", None], ["ticks"]):
                with pytest.raises(OptionError, match="event"):
                    subscribe(print, events=events)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="event"):
            engine.events(events=7)  # type: ignore[arg-type]


def test_a_stream_says_so() -> None:
    with Engine("sim:") as engine:
        events = engine.events(events=["request.start"])
        list(engine.stream("x", max_tokens=1))
        assert next(events).metadata["mode"] == "stream"


def test_a_time_out_is_done_and_a_failure_is_an_exception() -> None:
    (late,) = run(Engine("sim:?pass_ms=20"), "request.done", max_tokens=10_000, timeout=0.1)
    assert late.metadata["stop_reason"] == "timeout"
    (failed,) = run(Engine("sim:?fail_draw=1000"), "request.exception", max_tokens=1)
    assert set(failed.measurements) == DONE
    assert set(failed.metadata) == {*REQUEST, "stop_reason", "reason", "code"}
    assert (failed.metadata["stop_reason"], failed.metadata["code"]) == ("error", "inference_failed")


def test_a_request_cancelled_in_the_queue_never_had_a_sequence() -> None:
    with Engine("sim:?pass_ms=20", n_parallel=1) as engine:
        events = engine.events(events=["request.done"])
        running = engine.stream("x", max_tokens=10_000)
        next(running)
        engine.generate("waits").cancel()
        event = next(events)
        assert (event.metadata["seq_id"], event.metadata["stop_reason"]) == (None, "cancelled")
        running.cancel()


def test_a_callable_hears_what_it_wants_on_another_thread() -> None:
    heard: list[tuple[str, int]] = []
    done = threading.Event()

    def hear(event: Event) -> None:
        heard.append((event.name, threading.get_ident()))
        if event.name == "request.done":
            done.set()

    with Engine("sim:") as engine, engine.subscribe(hear, events="request.*") as subscription:
        engine.generate("x", max_tokens=2).result()
        assert done.wait(10)
        assert subscription.n_dropped == 0
    assert [name for name, _ in heard] == ["request.queued", "request.start", "request.done"]
    assert threading.get_ident() not in {thread for _, thread in heard}


def test_a_closed_subscription_hears_no_more() -> None:
    heard: list[Event] = []
    with Engine("sim:") as engine:
        before = threading.active_count()
        subscription = engine.subscribe(heard.append)
        subscription.close()
        engine.generate("x", max_tokens=2).result()
        assert threading.active_count() <= before
    assert heard == []


def test_a_subscription_hears_all_that_was_told_before_its_end() -> None:
    heard: list[str] = []

    def hear(event: Event) -> None:
        time.sleep(0.05)  # it is far behind when the subscription ends
        heard.append(event.name)

    with Engine("sim:?pass_ms=0") as engine:
        with engine.subscribe(hear, events=["request.done"]):
            for _ in range(10):
                engine.generate("x", max_tokens=1).result()
        n_heard = len(heard)
        engine.generate("x", max_tokens=1).result()
    assert (n_heard, len(heard)) == (10, 10)


def test_a_callable_that_hangs_does_not_hold_the_end_of_its_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_batch.telemetry.CLOSE_TIMEOUT_S", 0.2)
    called, go = threading.Event(), threading.Event()

    def hang(event: Event) -> None:
        called.set()
        go.wait(30)

    with Engine("sim:") as engine:
        with engine.subscribe(hang):
            engine.generate("x", max_tokens=1).result()
            assert called.wait(10)
        assert not go.is_set()
        assert engine.generate("y", max_tokens=1).result().finish_reason == "max_tokens"
        go.set()


def test_a_callable_may_end_its_own_subscription() -> None:
    heard: list[str] = []
    with Engine("sim:?pass_ms=0") as engine:

        def hear(event: Event) -> None:
            heard.append(event.name)
            subscription.close()

        subscription = engine.subscribe(hear, events=["request.done"])
        engine.generate("x", max_tokens=1).result()
        subscription.close()
        engine.generate("x", max_tokens=1).result()
    assert heard == ["request.done"]


def test_a_callable_that_raises_is_reported_and_hears_no_more(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    def fail(event: Event) -> None:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR, "llama_batch"), Engine("sim:") as engine:
        engine.subscribe(fail)
        assert engine.generate("x", max_tokens=20).result().finish_reason == "max_tokens"
    llama_batch.telemetry.join_pumps(10)
    assert calls == 1
    assert "hears no more" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_one_subscription_can_hear_all_engines() -> None:
    heard: set[str] = set()
    both = threading.Event()

    def hear(event: Event) -> None:
        heard.add(event.metadata["engine"].name)
        if len(heard & {"before", "after"}) == 2:
            both.set()

    with (
        Engine("sim:", name="before") as before,
        llama_batch.subscribe(hear, events=["request.done"]),
        Engine("sim:", name="after") as after,
    ):
        before.generate("x", max_tokens=1).result()
        after.generate("x", max_tokens=1).result()
        assert both.wait(10)


def test_an_unknown_event_is_refused() -> None:
    with Engine("sim:") as engine:
        with pytest.raises(OptionError, match=r"request\.done"):
            engine.subscribe(print, events=["request.finished"])
        with pytest.raises(OptionError):
            engine.events(events=["nonsense.*"])
    assert len(set(EVENT_NAMES)) == len(EVENT_NAMES)


def test_a_custom_strategy_shares_out_the_rows() -> None:
    views: list[StrategyView] = []

    def first_come(view: StrategyView) -> dict[int, int]:
        views.append(view)
        rows = view.requests[0]
        return {rows.request_id: min(rows.n_remaining, view.budget)}

    with Engine("sim:?pass_ms=0", batch_strategy=first_come) as engine:
        failures = engine.events(events=["strategy_failed"])
        done = [engine.generate("x" * 20, max_tokens=3) for _ in range(3)]
        assert all(g.result(timeout=30).finish_reason == "max_tokens" for g in done)
    assert list(failures) == []
    assert views
    assert all(view.budget > 0 and view.requests for view in views)


@pytest.mark.parametrize("answer", [None, {10**9: 5}, "nonsense", {1: -1}, ZeroDivisionError()])
def test_a_strategy_that_fails_is_reported_and_the_default_stands_in(answer: Any) -> None:
    def fail(view: StrategyView) -> dict[int, int]:
        if isinstance(answer, Exception):
            raise answer
        result: dict[int, int] = answer
        return result

    engine = Engine("sim:?pass_ms=0", batch_strategy=fail)
    failures = engine.events(events=["strategy_failed"])
    assert engine.generate("x", max_tokens=3).result(timeout=30).finish_reason == "max_tokens"
    engine.close()
    assert all(failure.metadata["reason"] for failure in failures)
