"""Scopes that share an engine: bounds of their own, and bad options."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
from llama_batch import Engine, OptionError, QueueFullError

SLOW = "sim:?pass_ms=20"
ANSWERED = "max_tokens"


def test_a_scope_that_is_full_is_refused_with_its_bound_and_the_others_come_in() -> None:
    with Engine(SLOW, n_parallel=1, max_queue=4, max_queue_per_scope=1) as engine:
        held = [engine.generate("x", max_tokens=500, fair_scope="flood") for _ in range(2)]
        with pytest.raises(QueueFullError, match="1 requests of this scope") as full:
            engine.generate("x", fair_scope="flood").result(timeout=10)
        assert (full.value.option, full.value.limit, full.value.retryable) == ("max_queue_per_scope", 1, True)
        again = pickle.loads(pickle.dumps(full.value))
        assert (again.option, again.limit) == ("max_queue_per_scope", 1)
        with pytest.raises(QueueFullError):
            engine.embed(["x"], fair_scope="flood").result(timeout=10)
        with pytest.raises(OptionError, match="max_queue_per_scope"):
            engine.generate("x", n=3, fair_scope="other").result(timeout=10)
        others = [engine.generate("x", max_tokens=1, cache_scope="flood", fair_scope=("a", at)) for at in range(2)]
        others += [engine.generate("x", max_tokens=1)]
        with pytest.raises(QueueFullError) as full:
            engine.generate("x", fair_scope="late").result(timeout=10)
        assert (full.value.option, full.value.limit) == ("max_queue", 4)
        for generation in held:
            generation.cancel()
        assert all(other.result(timeout=10).finish_reason == ANSWERED for other in others)


def test_who_waits_for_room_in_its_scope_holds_up_no_other() -> None:
    with Engine(SLOW, n_parallel=1, max_queue=0, max_queue_per_scope=1, queue_full="wait") as engine:
        flood = [engine.generate("x", max_tokens=20, fair_scope="flood") for _ in range(8)]
        light = engine.generate("x", max_tokens=1, fair_scope="light")
        assert light.result(timeout=10).finish_reason == ANSWERED
        assert sum(generation.done() for generation in flood) <= 2, "it did not wait for the flood"
        flood[4].cancel()
        rest = [generation.result(timeout=30).finish_reason for generation in flood]
        assert rest == [*[ANSWERED] * 4, "cancelled", *[ANSWERED] * 3]


def test_a_map_goes_on_beside_the_bound_of_its_scope() -> None:
    with Engine("sim:?pass_ms=0", n_parallel=4, max_queue_per_scope=1) as engine:
        done = list(engine.map(["x"] * 30, max_tokens=2, fair_scope="job"))
        assert [each.finish_reason for each in done] == [ANSWERED] * 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority_aging": -1}, "between 0"),
        ({"priority_aging": math.nan}, "finite"),
        ({"priority_aging": "slow"}, "must be a number"),
        ({"priority_agin": 1}, "priority_aging"),
        ({"max_queue_per_scope": -1}, "between 0"),
        ({"max_queue_per_scope": 1.5}, "must be an integer"),
    ],
)
def test_a_wrong_start_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Engine("sim:", **options)


def test_a_wrong_scope_is_refused_and_the_engine_goes_on() -> None:
    with Engine("sim:") as engine:
        bad: list[Any] = [1.5, True, ["list"], {}]
        for scope in bad:
            with pytest.raises(OptionError, match="fair_scope"):
                engine.generate("x", fair_scope=scope)
            with pytest.raises(OptionError, match="fair_scope"):
                engine.embed(["x"], fair_scope=scope)
        good: list[Any] = ["a", 7, b"bytes", ("a", 1), None]
        for scope in good:
            assert engine.generate("x", max_tokens=1, fair_scope=scope).result(timeout=10).finish_reason == ANSWERED
