"""What scopes get of an engine that has more to do than it can, through `Simulation`.

The rule is the Virtual Token Counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a token of
a prompt counts 1, a generated one 2, and the scope that was served least is next.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_batch import QueueFullError, Simulation

MODEL = "sim:?pass_ms=10&row_ms=2"
GENERATED = 2
HELD_BACK = 4
"""Tokens that wait for the rest of a character, at most."""


def prompt(which: int, n_tokens: int) -> list[int]:
    """Tokens that no other prompt begins with."""
    return [20 + (which * 7 + at * (which % 13 + 1)) % 400 for at in range(n_tokens)]


backlog = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 30)), min_size=1, max_size=20)


@given(
    backlogs=st.lists(backlog, min_size=2, max_size=4),
    n_parallel=st.integers(1, 5),
    n_ctx=st.integers(128, 600),
)
@settings(max_examples=50, deadline=None)
def test_the_service_of_scopes_that_wait_differs_by_no_more_than_the_bound(
    backlogs: list[list[tuple[int, int]]], n_parallel: int, n_ctx: int
) -> None:
    sim = Simulation("sim:", n_parallel=n_parallel, n_ctx=n_ctx, max_queue=0)
    scope_of = {
        sim.submit(prompt(place, n_prompt), max_tokens=n_tokens, fair_scope=scope, cache_prompt=False): scope
        for scope, requests in enumerate(backlogs)
        for place, (n_prompt, n_tokens) in enumerate(requests)
    }
    longest = max(n for requests in backlogs for n, _ in requests)
    most = max(n for requests in backlogs for _, n in requests)
    bound = longest + n_parallel * GENERATED * (most + HELD_BACK)
    served: Counter[int] = Counter()
    waiting = Counter(scope_of.values())
    while sim.step():
        for event in sim.events():
            scope = scope_of.get(event.metadata.get("request_id", 0), -1)
            if event.name == "request.start":
                served[scope] += int(event.measurements["prompt_tokens"])
                waiting[scope] -= 1
            elif event.name == "chunk":
                served[scope] += GENERATED * len(event.metadata["token_ids"])
        behind = [served[scope] for scope in range(len(backlogs)) if waiting[scope] > 0]
        assert not behind or max(behind) - min(behind) <= bound
    assert not +waiting


def queued_for(sim: Simulation, arrivals: list[tuple[float, dict[str, Any]]]) -> list[float]:
    """How long each of these requests waits for its slot, in seconds."""
    ids: list[int] = []
    waited: dict[int, float] = {}
    for at, options in arrivals:
        while sim.now < at:
            if not sim.step():
                sim.advance(at - sim.now)
        ids.append(sim.submit(prompt(len(ids), 20), cache_prompt=False, **options))
    assert sim.run()
    for event in sim.events():
        if event.name == "request.start":
            waited[event.metadata["request_id"]] = event.measurements["queue_ms"] / 1e3
    return [waited[request_id] for request_id in ids]


def flood(scope: Any) -> list[tuple[float, dict[str, Any]]]:
    return [(0.0, {"max_tokens": 20, "fair_scope": scope}) for _ in range(200)]


@pytest.mark.parametrize("scopes", [("flood", "light"), (None, "light"), ("flood", None), (("key", 1), ("key", 2))])
def test_a_flood_of_one_scope_makes_no_other_wait(scopes: tuple[Any, Any]) -> None:
    sim = Simulation(MODEL, n_parallel=4, max_queue=0, priority_aging=1.0)
    waited = queued_for(sim, [*flood(scopes[0]), (10.0, {"max_tokens": 5, "fair_scope": scopes[1]})])
    assert waited[-1] < 1.0
    assert max(waited) > 15.0


@pytest.mark.parametrize("by_cache", [False, True])
def test_the_scope_of_the_cache_counts_where_no_other_is_given(by_cache: bool) -> None:
    sim = Simulation(MODEL, n_parallel=4, max_queue=0)
    name = "cache_scope" if by_cache else "session"
    light = {"max_tokens": 5, name: "light"}
    waited = queued_for(sim, [*flood(None), (10.0, light)])
    assert waited[-1] < 1.0 if by_cache else waited[-1] > 5.0


@pytest.mark.parametrize("aging", [0.0, 2.0])
def test_a_low_priority_waits_for_its_turn_and_not_for_ever(aging: float) -> None:
    sim = Simulation(MODEL, n_parallel=1, max_queue=0, priority_aging=aging)
    urgent = [(at / 10, {"max_tokens": 10}) for at in range(150)]
    low = (0.5, {"max_tokens": 1, "priority": 1})
    waited = queued_for(sim, [*urgent[:6], low, *urgent[6:]])[6]
    assert aging * 0.5 < waited < aging + 4.0 if aging else waited > 15.0


def test_a_scope_has_a_bound_of_its_own() -> None:
    sim = Simulation("sim:", n_parallel=1, max_queue=5, max_queue_per_scope=1)
    for _ in range(2):
        sim.submit([20], fair_scope="a")
    with pytest.raises(QueueFullError) as full:
        sim.submit([20], fair_scope="a", cache_scope="b")
    assert (full.value.option, full.value.limit) == ("max_queue_per_scope", 1)
    for scope in ("b", "b", None, None):
        sim.submit([20], fair_scope=scope)
    with pytest.raises(QueueFullError) as full:
        sim.submit([20], fair_scope="c")
    assert (full.value.option, full.value.limit) == ("max_queue", 5)
    assert sim.run()
    assert math.isclose(sim.stats()["n_finished"], 6)
