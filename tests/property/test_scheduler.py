"""The scheduler under any interleaving of submissions, cancellations, time-outs and faults, through `Simulation`.

The simulated backend asserts llama.cpp's rules, and draws each token as a function of what the cells of its sequence
really hold; `check` asserts the scheduler's own invariants. What a caller may rely on is asserted here, after every
step: each request ends exactly once, says why truthfully, gets the tokens that it would have got alone, and never finds
a prefix that only another scope had.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule
from llama_batch import ContextFullError, QueueFullError, Simulation

if TYPE_CHECKING:
    from llama_batch.simulation import Fault

FULL = bool(os.environ.get("LLAMA_BATCH_FULL"))
WORKS_AT_MOST = 20_000
FAULTS: tuple[Fault, ...] = (
    *("kv_full", "fail", "refuse_copy", "refuse_trim", "refuse_save", "refuse_restore", "refuse_open", "fail_draw"),
)
TIMEOUTS = ("timeout", "queue_timeout", "stall_timeout")


@dataclass
class Life:
    """One request: what it asked for, and what it was told."""

    prompt: list[int]
    options: dict[str, Any]
    submitted_at: float
    cancelled: bool = False
    started: bool = False
    tokens: list[int] = field(default_factory=list)
    stop_reason: str | None = None

    @property
    def flow(self) -> Any:
        """Whom it is served with."""
        return self.options.get("fair_scope", self.options.get("cache_scope"))


limits = st.fixed_dictionaries(
    {
        "n_parallel": st.integers(1, 4),
        "n_ctx": st.integers(64, 400),
        "n_batch": st.integers(1, 24),
        "chunk_size": st.integers(1, 16),
        "max_queue": st.integers(0, 5),
        "max_queue_per_scope": st.sampled_from([0, 0, 0, 1, 3]),
        "priority_aging": st.sampled_from([0.0, 0.1, 60.0]),
        "n_cache_seqs": st.none() | st.integers(0, 4),
        "batch_strategy": st.sampled_from(["decode_maximal", "prefill_priority", "balanced"]),
        "kv_unified": st.booleans(),
    }
)
models = st.fixed_dictionaries(
    {
        "memory": st.sampled_from(["full", "full", "window:40", "recurrent", "hybrid"]),
        "seed": st.integers(0, 1000),
        "eog_every": st.sampled_from([0, 8, 40]),
    }
)


def simulation(limits: dict[str, Any], model: dict[str, Any]) -> Simulation:
    return Simulation("sim:?" + "&".join(f"{name}={value}" for name, value in model.items()), **limits)


# Prompts of three families share their beginnings, so that prefixes are reused, forked and trimmed.
prompts = st.builds(
    lambda family, shared, tail: [(family * 97 + at * 7) % 400 + 20 for at in range(shared)] + tail,
    st.integers(0, 2),
    st.sampled_from([0, 17, 40, 40, 90]),
    st.lists(st.integers(20, 419), min_size=1, max_size=6),
)
request_options = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(0, 40) | st.integers(60, 150),
        "seed": st.integers(0, 3),
        "cache_prompt": st.sampled_from([True, True, False]),
    },
    optional={
        "session": st.sampled_from(["a", "b", ("c", 1)]),
        "cache_scope": st.sampled_from(["tenant", 7]),
        "fair_scope": st.sampled_from(["a", "b"]),
        "timeout": st.floats(0.01, 1.0),
        "queue_timeout": st.floats(0.01, 1.0),
        "stall_timeout": st.floats(0.01, 1.0),
    },
)


class Scheduling(RuleBasedStateMachine):
    """What callers, clocks and backends can do, in any order."""

    requests = Bundle("requests")

    @initialize(limits=limits, model=models, is_reliable=st.booleans())
    def start(self, limits: dict[str, Any], model: dict[str, Any], is_reliable: bool) -> None:
        self.limits, self.model, self.is_reliable = limits, model, is_reliable
        self.room = limits["n_ctx"] // (1 if limits["kv_unified"] else limits["n_parallel"])
        self.sim = simulation(limits, model)
        self.lives: dict[int, Life] = {}
        self.slots: dict[int, float] = {}
        self.faulty = False

    def unended(self) -> int:
        return sum(life.stop_reason is None for life in self.lives.values())

    def is_full(self, full: QueueFullError, flow: Any) -> None:
        """Whether the bound that is said to be reached is."""
        n_of_flow = sum(life.stop_reason is None and life.flow == flow for life in self.lives.values())
        n_unended = self.unended() if full.option == "max_queue" else n_of_flow
        assert full.limit == self.limits[full.option]
        assert 0 < full.limit <= n_unended - self.limits["n_parallel"]

    @rule(target=requests, burst=st.lists(prompts, min_size=1, max_size=5), options=request_options)
    def submit(self, burst: list[list[int]], options: dict[str, Any]) -> Any:
        return multiple(*(request_id for prompt in burst for request_id in self.submit_one(prompt, options)))

    def submit_one(self, prompt: list[int], options: dict[str, Any]) -> list[int]:
        try:
            request_id = self.sim.submit(prompt, **options)
        except ContextFullError:
            assert len(prompt) + min(options["max_tokens"], 1) > self.room
            return []
        except QueueFullError as full:
            self.is_full(full, Life(prompt, options, self.sim.now).flow)
            return []
        assert request_id not in self.lives
        self.lives[request_id] = Life(prompt, options, self.sim.now)
        return [request_id]

    @rule(request_id=requests)
    def cancel(self, request_id: int) -> None:
        if self.lives[request_id].stop_reason is None:
            self.lives[request_id].cancelled = True
        self.sim.cancel(request_id)

    @rule(seconds=st.floats(0.0, 0.5))
    def let_time_go_by(self, seconds: float) -> None:
        self.sim.advance(seconds)

    @precondition(lambda self: not self.is_reliable)
    @rule(fault=st.sampled_from(FAULTS))
    def let_something_fail(self, fault: Fault) -> None:
        self.faulty = True
        self.sim.inject(fault)

    @rule()
    def begin(self) -> None:
        self.sim.begin()

    @rule()
    def complete(self) -> None:
        self.sim.complete()

    @rule(works=st.integers(1, 40))
    def work(self, works: int) -> None:
        for _ in range(works):
            if not self.sim.step():
                assert self.sim.stats()["queue_depth"] == 0, "a request waits although nothing is left to do"
                break

    @invariant()
    def everything_holds(self) -> None:
        if hasattr(self, "sim"):
            self.sim.check()
            self.listen()

    def listen(self) -> None:
        """Take what the scheduler told, and hold it against what was asked for."""
        for event in self.sim.events():
            if "request_id" not in event.metadata:
                continue
            request_id: int = event.metadata["request_id"]
            life = self.lives[request_id]
            assert life.stop_reason is None, f"{event.name} after the end of request {request_id}"
            if event.name == "chunk":
                assert life.started
                life.tokens += event.metadata["token_ids"]
                assert len(life.tokens) <= life.options["max_tokens"]
            elif event.name == "request.start":
                # Who awaits another's prefix is told of later; it has its slot all the same.
                life.started = True
                self.slots[request_id] = at = life.submitted_at + event.measurements["queue_ms"] / 1e3
                in_turn = all(
                    (other < request_id) == (had_at <= at) or had_at == pytest.approx(at, abs=1e-6)
                    for other, had_at in self.slots.items()
                    if other != request_id and self.lives[other].flow == life.flow
                )
                assert in_turn, "a later request got the slot of an earlier one of its scope"
                assert event.measurements["prefix_cache_tokens"] <= self.most_to_reuse(request_id)
            elif event.name in {"request.done", "request.exception"}:
                assert event.measurements["generated_tokens"] == len(life.tokens)
                life.stop_reason = event.metadata["stop_reason"]
                self.is_true(life)

    def most_to_reuse(self, request_id: int) -> int:
        """How much of its prompt a request can find: what others of its scope have, and nothing of anybody else's."""
        life = self.lives[request_id]
        if not life.options["cache_prompt"]:
            return 0
        shared = [0]
        for other_id, other in self.lives.items():
            alike = other.options.get("cache_scope") == life.options.get("cache_scope")
            if other_id != request_id and alike and other.options["cache_prompt"]:
                pairs = zip(life.prompt, [*other.prompt, *other.tokens], strict=False)
                shared.append(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
        return min(max(shared), len(life.prompt) - 1)

    def is_true(self, life: Life) -> None:
        """Whether a request's reason to end is one that it had."""
        n_tokens = len(life.prompt) + len(life.tokens)
        given = [life.options[name] for name in TIMEOUTS if name in life.options]
        reasons = {
            "max_tokens": len(life.tokens) == life.options["max_tokens"],
            "eog": self.model["eog_every"] > 0,
            "cancelled": life.cancelled,
            "context_full": n_tokens >= self.room or self.faulty,
            "timeout": bool(given) and self.sim.now - life.submitted_at >= min(given) - 1e-6,
            "error": self.faulty,
        }
        assert life.stop_reason is not None
        assert reasons[life.stop_reason], f"{life.stop_reason} is not why it ended"

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        self.sim.complete()
        assert self.sim.run(WORKS_AT_MOST), "the scheduler never comes to rest"
        self.sim.check()
        self.listen()
        stats = self.sim.stats()
        assert self.unended() == 0, "a request without an end"
        assert stats["n_submitted"] == stats["n_finished"] == len(self.lives)
        assert stats["active_slots"] == stats["queue_depth"] == 0
        self.compare_with_each_alone()

    def compare_with_each_alone(self) -> None:
        """No neighbour, fault, park or reused prefix changes a request's tokens."""
        apart = {"n_parallel": 1, "n_cache_seqs": 0, "max_queue": 0, "max_queue_per_scope": 0, "n_ctx": self.room}
        alone = simulation({**self.limits, **apart}, self.model)
        for life in self.lives.values():
            options = {"max_tokens": life.options["max_tokens"], "seed": life.options["seed"], "cache_prompt": False}
            alone.submit(life.prompt, **options)
            assert alone.run(WORKS_AT_MOST)
            chunks = [event.metadata["token_ids"] for event in alone.events() if event.name == "chunk"]
            expected = [token for chunk in chunks for token in chunk]
            if life.stop_reason in {"max_tokens", "eog"}:
                assert life.tokens == expected
            else:
                assert life.tokens == expected[: len(life.tokens)]


Scheduling.TestCase.settings = settings(
    max_examples=2000 if FULL else 100,
    stateful_step_count=80 if FULL else 40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestScheduling = pytest.mark.timeout(3600 if FULL else 300)(Scheduling.TestCase)
