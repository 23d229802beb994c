"""The figures of `llama-batch bench`: from records to percentiles, rates, goodput, and back from a file."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_batch.benchmark import BenchmarkError, Distribution, Result, Slo, percentile, poisson
from llama_batch.benchmark.arrivals import ClosedLoop, OpenLoop
from llama_batch.benchmark.driver import Run
from llama_batch.benchmark.figures import figures_of, longest_silence_ms
from llama_batch.benchmark.record import Record
from llama_batch.errors import OptionError

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)


def record(
    due: float, *deliveries: float, sent: float | None = None, ended: float | None = None, **kept: object
) -> Record:
    made = Record(0, 0, due, sent=due if sent is None else sent, deliveries=list(deliveries))
    made.ended = deliveries[-1] if ended is None else ended
    for name, value in kept.items():
        setattr(made, name, value)
    return made


@settings(deadline=None)
@given(values, st.floats(0, 1))
def test_a_percentile_is_the_least_value_that_the_share_does_not_exceed(drawn: list[float], share: float) -> None:
    ascending = sorted(drawn)
    found = percentile(ascending, share)
    assert found in ascending
    assert sum(value <= found for value in ascending) >= share * len(ascending) - 1e-6
    assert sum(value < found for value in ascending) < max(share * len(ascending), 1e-9) + 1e-6


def test_percentiles_are_those_of_the_textbook() -> None:
    ascending = [float(n) for n in range(1, 21)]
    assert [percentile(ascending, share) for share in (0, 0.5, 0.9, 0.95, 0.99, 1)] == [1, 10, 18, 19, 20, 20]
    assert percentile([7.0], 0.01) == 7


@settings(deadline=None)
@given(values)
def test_a_distribution_is_ordered(drawn: list[float]) -> None:
    spread = Distribution.of([*drawn, None])
    assert spread is not None
    assert spread.n == len(drawn)
    assert spread.p50 <= spread.p90 <= spread.p95 <= spread.p99 <= spread.max == max(drawn)
    assert min(drawn) - 1e-6 <= spread.mean <= max(drawn) + 1e-6
    assert Distribution.of([None]) is None


def test_latencies_count_from_when_a_request_was_due_not_from_when_it_was_sent() -> None:
    late = record(1.0, 3.0, 3.5, sent=2.0, ended=3.6, n_output=4, n_prompt=7)
    assert (late.ttft_ms, late.late_ms, late.itls_ms) == (2000, 1000, [500])
    assert late.e2e_ms == pytest.approx(2600)
    assert late.tpot_ms == pytest.approx(500 / 3)  # by the count of tokens, not of deliveries


def test_failed_requests_are_counted_by_reason_and_are_in_no_latency_or_rate() -> None:
    records = [
        record(0.0, 1.0, 2.0, n_output=10, n_prompt=4, n_cached=1),
        record(0.0, 9.0, n_output=100, n_prompt=50, failure="broken"),
        record(0.5, ended=4.0, failure="broken"),
        record(0.5, ended=0.6, failure="HTTP 500: oh"),
    ]
    figures = figures_of(records)
    assert (figures.n_requests, figures.n_completed, figures.n_failed) == (4, 1, 3)
    assert figures.failures == {"broken": 2, "HTTP 500: oh": 1}
    assert (figures.output_tokens, figures.input_tokens, figures.cached_tokens) == (10, 4, 1)
    assert figures.duration_s == 9
    assert figures.output_tokens_per_s == pytest.approx(10 / 9)
    assert figures.ttft_ms is not None
    assert (figures.ttft_ms.n, figures.ttft_ms.max) == (1, 1000)
    assert figures.tokens_per_delivery == 5


def test_tokens_that_nobody_counted_are_unknown_and_not_nought() -> None:
    figures = figures_of([record(0.0, 1.0, 2.0)])
    assert (figures.output_tokens, figures.output_tokens_per_s, figures.tpot_ms) == (None, None, None)
    assert figures.n_without_usage == 1
    assert figures.itl_ms is not None


def test_nothing_asked_has_figures_too() -> None:
    figures = figures_of([], Slo({"ttft": 1.0}))
    assert (figures.n_requests, figures.duration_s, figures.longest_silence_ms) == (0, 0, 0)
    assert figures.goodput is not None
    assert figures.goodput.share == 0


def test_goodput_is_the_share_of_all_that_keep_to_every_bound() -> None:
    slo = Slo.parse(["ttft:500", "itl:100,e2e:1000"])
    assert slo is not None
    good = record(0.0, 0.5, 0.6)
    assert slo.kept_by(good)
    assert not slo.kept_by(record(0.0, 0.501, 0.6))
    assert not slo.kept_by(record(0.0, 0.4, 0.51))
    assert not slo.kept_by(record(0.0, 0.4, 0.5, ended=1.01))
    assert not slo.kept_by(record(0.0, 0.5, 0.6, failure="broken"))
    figures = figures_of([good, record(0.0, 0.6, ended=2.0)], slo)
    assert figures.goodput is not None
    assert (figures.goodput.n_good, figures.goodput.share, figures.goodput.requests_per_s) == (1, 0.5, 0.5)


def test_a_bound_on_what_was_not_told_is_not_kept() -> None:
    slo = Slo.parse(["tpot:50"])
    assert slo is not None
    assert not slo.kept_by(record(0.0, 0.1, 0.2))
    assert slo.kept_by(record(0.0, 0.1, n_output=1))
    assert slo.kept_by(record(0.0, 0.1, 0.2, n_output=3))


@pytest.mark.parametrize(
    "words", [["ttft"], ["ttft:"], ["ttft:x"], ["speed:1"], ["ttft:0"], ["ttft:-5"], ["ttft:nan"], ["ttft:inf"],
              ["ttft:1", "ttft:2"], ["e2e:1", "e2el:2"]],
)  # fmt: skip
def test_an_objective_that_makes_no_sense_is_refused(words: list[str]) -> None:
    with pytest.raises(OptionError, match="slo"):
        Slo.parse(words)


def test_no_words_are_no_objective_and_vllms_names_are_known() -> None:
    assert Slo.parse([]) is None
    slo = Slo.parse(["e2el:5"])
    assert slo is not None
    assert slo.bounds == {"e2e": 5}


def test_the_longest_silence_is_one_in_which_somebody_waits() -> None:
    first = record(0.0, 0.1, 0.2, 0.3, ended=0.3)
    second = record(5.0, 5.1, 5.2, ended=5.2)
    assert longest_silence_ms([first, second]) == pytest.approx(100)  # nobody waited from 0.3 to 5
    stalled = record(5.05, 5.9, ended=6.0)
    assert longest_silence_ms([first, second, stalled]) == pytest.approx(700)
    # Who asks into a silence does not end it.
    assert longest_silence_ms([record(0.0, 2.0), record(1.5, 2.0)]) == pytest.approx(2000)


@settings(deadline=None)
@given(st.integers(1, 300), st.floats(0.1, 100), st.integers(0, 2**32))
def test_poisson_arrivals_ascend_from_nought_and_are_the_same_for_a_seed(n: int, rate: float, seed: int) -> None:
    drawn = poisson(rate, n, seed)
    assert len(drawn) == n
    assert drawn[0] == 0
    assert drawn == sorted(drawn) == poisson(rate, n, seed)


def test_poisson_arrivals_have_their_rate() -> None:
    drawn = poisson(5.0, 20_000, seed=1)
    gaps = [later - at for at, later in pairwise(drawn)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 5, rel=0.03)
    # Of an exponential distribution the standard deviation is the mean: no regular beat, no bursts.
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) == pytest.approx(mean, rel=0.05)
    assert poisson(math.inf, 3, 0) == [0, 0, 0]
    assert poisson(1.0, 3, 0) != poisson(1.0, 3, 1)


def kept_run(arrivals: ClosedLoop | OpenLoop) -> Run:
    run = Run(5, arrivals, started=100.0, ended=103.0, cpu_s=0.3)
    run.records = [
        record(
            100.0, 101.0, 101.5, ended=101.6, n_output=3, n_prompt=9, n_cached=2, queue_ms=1.5, finish_reason="length"
        ),
        record(100.25, ended=102.0, failure="HTTP 500: no & <no>"),
    ]
    return run


def test_a_result_survives_its_file() -> None:
    result = Result.of(kept_run(ClosedLoop(2)), label="mine", target={"kind": "url"}, slo=Slo({"ttft": 500.0}))
    again = Result.from_json(json.loads(json.dumps(result.to_json())))
    assert again.to_json() == result.to_json()
    assert again.figures.n_failed == 1
    assert again.cpu_share == pytest.approx(0.1)
    assert again.records[0].due == 0


def test_notes_tell_of_a_closed_loop_and_of_what_was_not_asked() -> None:
    closed = Result.of(kept_run(ClosedLoop(2)))
    assert any("Closed loop" in note and "longest silence" in note for note in closed.notes)
    assert any("3 of 5 requests were not asked" in note for note in closed.notes)
    assert not any("Closed loop" in note for note in Result.of(kept_run(OpenLoop([0.0]))).notes)


def test_a_client_that_is_late_says_so() -> None:
    run = kept_run(OpenLoop([0.0], "poisson", 1.0))
    run.records[0].sent = 100.5
    assert any("sent late" in note for note in Result.of(run).notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other"}, "not a result"),
        ({"version": 2}, "version 2"),
        ({"label": 3}, "label"),
        ({"requests": [{}]}, "missing"),
        ({"requests": None}, "damaged"),
        ({"slo": {"ttft": "x"}}, "damaged"),
    ],
)
def test_a_file_of_another_kind_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(BenchmarkError, match=message):
        Result.from_json({**Result.of(kept_run(ClosedLoop(1))).to_json(), **change})
    with pytest.raises(BenchmarkError, match="not a result"):
        Result.from_json([])
