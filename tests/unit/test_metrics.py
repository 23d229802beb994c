"""What an engine measures: as much as its clients count, whoever looks meanwhile."""

from __future__ import annotations

import math
import pickle
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_batch import Completion, Engine, Histogram, LlamaBatchError, Metrics, OptionError, _core
from llama_batch.errors import QueueFullError, RequestTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_batch import Generation

REFUSALS = {"queue_full", "empty_prompt", "context_full", "invalid_prompt", "invalid_template", "invalid_grammar"}
TIMES = ("e2e_request_latency", "request_queue_time", "request_prompt_tokens", "request_generation_tokens")


@dataclass
class Counts:
    """What a client counts."""

    reasons: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    done: list[Completion] = field(default_factory=list)

    def take(self, generation: Generation) -> None:
        """Wait for the end of a request."""
        try:
            completion = generation.result(timeout=60)
        except LlamaBatchError as error:
            self.codes[error.code] += 1
            if not isinstance(error, RequestTimeoutError) or error.completion is None:
                return
            completion = error.completion
        self.reasons[completion.finish_reason] += 1
        self.done.append(completion)

    def usage(self, name: str) -> int:
        """A figure of all completions together."""
        return sum(getattr(completion.usage, name) for completion in self.done)


def histograms(metrics: Metrics) -> Iterator[Histogram]:
    for name in Metrics.__dataclass_fields__:
        if isinstance(value := getattr(metrics, name), Histogram):
            yield value


KINDS = st.sampled_from(["short", "long", "none", "late", "empty", "huge", "cancelled", "broken off", "wrong"])


def send(engine: Engine, kind: str, length: int) -> Generation:
    """Submit one request of a kind."""
    prompt: Any = [10 + length] * length
    match kind:
        case "late":
            return engine.generate(prompt, max_tokens=100_000, timeout=0.01)
        case "empty":
            return engine.generate("")
        case "huge":
            return engine.generate([5] * 5000)
        case "wrong":
            return engine.generate(prompt, grammar="root ::= (")
        case "broken off":
            stream = engine.stream(prompt, max_tokens=100_000)
            next(iter(stream), None)
            stream.cancel()
            return stream
        case "cancelled":
            generation = engine.generate(prompt, max_tokens=100_000)
            generation.cancel()
            return generation
    return engine.generate(prompt, max_tokens={"short": 3, "long": 40, "none": 0}[kind])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(KINDS, st.integers(1, 80)), max_size=12), st.integers(0, 200))
def test_the_engine_counts_what_its_clients_count(requests: list[tuple[str, int]], eog_every: int) -> None:
    uri = f"sim:?pass_ms=0&row_ms=0&eog_every={eog_every}"
    counts = Counts()
    with Engine(uri, n_ctx=4096, n_parallel=2, max_queue=3) as engine:
        generations = []
        for kind, length in requests:
            try:
                generations.append(send(engine, kind, length))
            except QueueFullError as error:  # a stream says so where it is first read
                counts.codes[error.code] += 1
        for generation in generations:
            counts.take(generation)
        engine.close(drain=True)
        metrics = engine.metrics()
    assert {code: n for code, n in metrics.failures.items() if n} == counts.codes
    assert set(counts.codes) <= {*REFUSALS, "timeout"}
    assert {reason: n for reason, n in metrics.finished.items() if n} == counts.reasons
    assert {name: getattr(metrics, name).count for name in TIMES} == dict.fromkeys(TIMES, len(counts.done))
    assert metrics.request_prompt_tokens.sum == counts.usage("prompt_tokens")
    assert metrics.request_generation_tokens.sum == counts.usage("generated_tokens")
    n_drawn = metrics.time_to_first_token.count + metrics.inter_token_latency.count
    assert n_drawn >= metrics.stats.n_generated_tokens >= metrics.request_generation_tokens.sum
    if not any(kind == "cancelled" for kind, _ in requests):
        # Who is cancelled as it gets its slot may draw a token that its client hears nothing of.
        assert metrics.stats.n_generated_tokens == metrics.request_generation_tokens.sum
        assert metrics.inter_token_latency.count == sum(max(d.usage.generated_tokens - 1, 0) for d in counts.done)
        assert sum(metrics.prefix_cache_hits.values()) == counts.usage("prefix_cache_tokens")
    assert metrics.iteration_tokens.count == metrics.stats.n_ticks
    assert sum(metrics.prefix_cache_hits.values()) == metrics.stats.n_prefix_cache_tokens
    assert sum(metrics.prefix_cache_hits.values()) <= metrics.n_prefix_cache_queries <= metrics.n_prompt_tokens


def test_draws_that_fail_are_failures_by_their_code() -> None:
    counts = Counts()
    with Engine("sim:?pass_ms=0&row_ms=0&fail_draw=100&seed=3", n_parallel=4, max_queue=0) as engine:
        for generation in [engine.generate("x", max_tokens=9) for _ in range(40)]:
            counts.take(generation)
        metrics = engine.metrics()
    assert 0 < counts.codes["inference_failed"] < 40
    assert metrics.failures["inference_failed"] == metrics.finished["error"] == counts.codes["inference_failed"]
    assert metrics.finished["max_tokens"] == counts.reasons["max_tokens"]
    assert set(metrics.failures) >= {code for code, _, _ in _core.error_samples()}


def test_each_answer_to_a_prompt_is_a_request() -> None:
    with Engine("sim:?pass_ms=0&row_ms=0", n_parallel=4) as engine:
        done = engine.generate("x", n=3, max_tokens=5).result()
        metrics = engine.metrics()
    assert metrics.finished["max_tokens"] == len(done.choices) == 3
    assert metrics.inter_token_latency.count == 3 * 4


def test_a_result_that_is_there_is_counted() -> None:
    with Engine("sim:?pass_ms=0&row_ms=0") as engine:
        for n in range(1, 200):
            engine.generate("x", max_tokens=2).result()
            metrics = engine.metrics()
            assert (metrics.finished["max_tokens"], metrics.e2e_request_latency.count) == (n, n)
            assert (metrics.time_to_first_token.count, metrics.inter_token_latency.count) == (n, n)


def test_a_gap_counts_although_the_text_stays_back() -> None:
    with Engine("sim:?pass_ms=0&row_ms=0") as engine:
        done = engine.generate("x", max_tokens=30, stop=["no such text in an answer"]).result()
        assert engine.metrics().inter_token_latency.count == done.usage.generated_tokens - 1


def test_evictions_parks_and_tiers_are_counted() -> None:
    options: dict[str, Any] = {"n_parallel": 4, "n_ctx": 512, "max_queue": 0, "prompt_cache_ram_mb": 64}
    with Engine("sim:?pass_ms=0&row_ms=0", **options) as engine:
        prompts = [[10 + i] * 120 for i in range(24)]
        for generation in [engine.generate(prompt, max_tokens=100) for prompt in prompts * 2]:
            generation.result(timeout=60)
        engine.close(drain=True)
        metrics = engine.metrics()
    assert metrics.stats.n_evicted > 0
    assert metrics.tiers["ram"].tokens["save"] > 0
    assert metrics.tiers["ram"].bytes["save"] > 0
    assert metrics.tiers["ram"].tokens["restore"] >= metrics.prefix_cache_hits["ram"] > 0
    assert not any(metrics.tiers["disk"].tokens.values())


def test_many_may_look_while_requests_run() -> None:
    wrong: list[str] = []
    over = threading.Event()

    def look(engine: Engine) -> None:
        before = engine.metrics()
        while not over.is_set():
            now = engine.metrics()
            pairs = zip(histograms(before), histograms(now), strict=True)
            if any(a > b for old, new in pairs for a, b in zip(old.counts, new.counts, strict=True)):
                wrong.append("a count went down")
            if sum(now.finished.values()) > now.e2e_request_latency.count:
                wrong.append("an end without its time")
            if sum(now.prefix_cache_hits.values()) > now.n_prefix_cache_queries:
                wrong.append("more hits than queries")
            if now.iteration_tokens.count > now.stats.n_ticks:
                wrong.append("rows of a pass that was not")
            before = now

    with Engine("sim:?pass_ms=0&row_ms=0", n_parallel=8, max_queue=0) as engine:
        lookers = [threading.Thread(target=look, args=(engine,)) for _ in range(4)]
        for looker in lookers:
            looker.start()
        try:
            prompts = [f"a common beginning of all prompts, then {i}" for i in range(150)]
            assert len(list(engine.map(prompts, max_tokens=20))) == 150
        finally:
            over.set()
            for looker in lookers:
                looker.join()
    assert wrong == []


def test_an_engine_in_any_state_can_be_looked_at() -> None:
    engine = Engine("sim:")
    assert engine.metrics().stats.state in {"loading", "ready"}
    engine.close()
    assert engine.metrics().stats.state == "closed"
    with pytest.raises(LlamaBatchError):
        engine.generate("x").result()
    assert engine.metrics().failures["closed"] == 1


def test_nothing_that_was_measured_is_below_zero() -> None:
    with Engine("sim:?pass_ms=0&row_ms=0") as engine:
        list(engine.map(["x"] * 20, max_tokens=5))
        metrics = engine.metrics()
    for histogram in histograms(metrics):
        assert all(count >= 0 for count in histogram.counts)
        assert histogram.sum >= 0
        assert len(histogram.counts) == len(histogram.buckets) + 1
    assert metrics.e2e_request_latency.sum >= metrics.request_queue_time.sum
    assert metrics.inter_token_latency.sum == pytest.approx(metrics.request_decode_time.sum)
    assert pickle.loads(pickle.dumps(metrics)) == metrics


def test_buckets_are_those_of_vllm() -> None:
    with Engine("sim:", n_ctx=100) as engine:
        metrics = engine.metrics()
    assert metrics.time_to_first_token.buckets[:4] == (0.001, 0.005, 0.01, 0.02)
    assert metrics.time_to_first_token.buckets[-1] == 2560.0
    assert metrics.inter_token_latency.buckets[:3] == (0.01, 0.025, 0.05)
    assert metrics.e2e_request_latency.buckets[0] == 0.3
    assert metrics.e2e_request_latency.buckets[-1] == 7680.0
    assert metrics.request_prompt_tokens.buckets == (1, 2, 5, 10, 20, 50, 100)
    assert metrics.iteration_tokens.buckets[-1] == 16384


@given(st.lists(st.floats(0, 2), min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_its_value(values: list[float], q: float) -> None:
    bounds = (0.25, 0.5, 1.0)
    edges = (*bounds, math.inf)
    counts = [0] * 4
    for value in values:
        counts[next(i for i, edge in enumerate(edges) if value <= edge)] += 1
    histogram = Histogram(bounds, tuple(counts), sum(values))
    true = sorted(values)[max(math.ceil(q * len(values)) - 1, 0)]
    which = next(i for i, edge in enumerate(edges) if true <= edge)
    lower, upper = (0.0, *bounds, bounds[-1])[which], (*bounds, bounds[-1])[which]
    assert lower <= histogram.quantile(q) <= upper


def test_a_quantile_of_nothing_is_no_number_and_a_wrong_one_is_refused() -> None:
    assert math.isnan(Histogram((1.0,), (0, 0), 0.0).quantile(0.5))
    for wrong in (-0.1, 1.1, math.nan, "0.5", None, True):
        with pytest.raises(OptionError, match="quantile"):
            Histogram((1.0,), (1, 0), 0.5).quantile(wrong)  # type: ignore[arg-type]
