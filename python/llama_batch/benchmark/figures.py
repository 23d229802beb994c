"""From records to figures. All of it is a function of the records."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_batch.benchmark.record import Record
    from llama_batch.benchmark.slo import Slo

__all__ = ["Distribution", "Figures", "Goodput", "figures_of", "longest_silence_ms", "percentile"]


def percentile(ascending: Sequence[float], share: float) -> float:
    """The smallest of the values that at least a share of all does not exceed (nearest rank).

    Args:
        ascending: the values, in order; at least one.
        share: from 0 to 1.

    Returns:
        One of the values, never something in between: a p99 of 10 requests is their worst.

    Example:
        >>> percentile([10.0, 20.0, 30.0, 40.0], 0.5)
        20.0
    """
    # The rank is rounded before its ceiling is taken: 0.95 times 20 is a hair more than 19 in floating point.
    return ascending[max(0, math.ceil(round(share * len(ascending), 9)) - 1)]


@dataclass(frozen=True, slots=True)
class Distribution:
    """What there is to say about many durations. Unit: milliseconds.

    Attributes:
        n: how many there were.
        mean: their mean.
        p50: half of them are no longer.
        p90: nine tenths of them are no longer.
        p95: 95 % of them are no longer.
        p99: 99 % of them are no longer.
        max: the longest.
    """

    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Distribution | None:
        """Of some values, those that are None left out; None where nothing is left."""
        known = sorted(value for value in values if value is not None)
        if not known:
            return None
        p50, p90, p95, p99 = (percentile(known, share) for share in (0.5, 0.9, 0.95, 0.99))
        return cls(len(known), math.fsum(known) / len(known), p50, p90, p95, p99, known[-1])


@dataclass(frozen=True, slots=True)
class Goodput:
    """What came within a service level objective.

    Attributes:
        bounds_ms: the objective, by figure. Unit: milliseconds.
        n_good: requests that kept to it.
        share: of all that were asked, failed ones too; from 0 to 1.
        requests_per_s: good requests per second.
    """

    bounds_ms: dict[str, float]
    n_good: int
    share: float
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run. Latencies are those of complete requests, from when they were due.

    Attributes:
        duration_s: from the first request's due time to the last one's end. Unit: seconds.
        n_requests: requests that were asked.
        n_completed: those that were answered in full.
        n_failed: the others.
        failures: how many failed for each reason.
        requests_per_s: complete requests per second.
        input_tokens: tokens of the complete requests' prompts, by the target's count; None where it never said.
        cached_tokens: those of them that were not computed.
        output_tokens: tokens generated for complete requests.
        input_tokens_per_s: `input_tokens` over `duration_s`.
        output_tokens_per_s: `output_tokens` over `duration_s`.
        n_without_usage: complete requests whose tokens the target did not count.
        tokens_per_delivery: tokens that came together, on average.
        ttft_ms: time to the first text.
        itl_ms: gaps between deliveries, of all requests together.
        tpot_ms: time per output token after the first, one figure for each request.
        e2e_ms: time to the end.
        queue_ms: time in the target's queue, where it tells.
        late_ms: how late the client sent.
        longest_silence_ms: the longest time in which requests were under way and nothing came for any of them.
        goodput: what kept to the objective, where there is one.
    """

    duration_s: float
    n_requests: int
    n_completed: int
    n_failed: int
    failures: dict[str, int]
    requests_per_s: float
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    n_without_usage: int
    tokens_per_delivery: float | None
    ttft_ms: Distribution | None
    itl_ms: Distribution | None
    tpot_ms: Distribution | None
    e2e_ms: Distribution | None
    queue_ms: Distribution | None
    late_ms: Distribution | None
    longest_silence_ms: float
    goodput: Goodput | None


def figures_of(records: Sequence[Record], slo: Slo | None = None) -> Figures:
    """Sum up a run.

    Args:
        records: how each request went.
        slo: what counts as a good request.

    Returns:
        The figures.
    """
    done = [record for record in records if record.complete]
    duration_s = max((r.ended for r in records), default=0.0) - min((r.due for r in records), default=0.0)
    n_output, n_input = (_total(getattr(record, name) for record in done) for name in ("n_output", "n_prompt"))
    n_deliveries = sum(len(record.deliveries) for record in done if record.n_output is not None)
    failures = Counter(record.failure for record in records if record.failure is not None)
    return Figures(
        duration_s=duration_s,
        n_requests=len(records),
        n_completed=len(done),
        n_failed=len(records) - len(done),
        failures=dict(failures.most_common()),
        requests_per_s=_rate(len(done), duration_s),
        input_tokens=n_input,
        cached_tokens=_total(record.n_cached for record in done),
        output_tokens=n_output,
        input_tokens_per_s=None if n_input is None else _rate(n_input, duration_s),
        output_tokens_per_s=None if n_output is None else _rate(n_output, duration_s),
        n_without_usage=sum(record.n_output is None for record in done),
        tokens_per_delivery=n_output / n_deliveries if n_output is not None and n_deliveries else None,
        ttft_ms=Distribution.of(record.ttft_ms for record in done),
        itl_ms=Distribution.of(gap for record in done for gap in record.itls_ms),
        tpot_ms=Distribution.of(record.tpot_ms for record in done),
        e2e_ms=Distribution.of(record.e2e_ms for record in done),
        queue_ms=Distribution.of(record.queue_ms for record in done),
        late_ms=Distribution.of(record.late_ms for record in records),
        longest_silence_ms=longest_silence_ms(records),
        goodput=None if slo is None else _goodput(records, slo, duration_s),
    )


def _goodput(records: Sequence[Record], slo: Slo, duration_s: float) -> Goodput:
    n_good = sum(map(slo.kept_by, records))
    share = n_good / len(records) if records else 0.0
    return Goodput(dict(slo.bounds), n_good, share, _rate(n_good, duration_s))


def longest_silence_ms(records: Sequence[Record]) -> float:
    """The longest time in which requests were under way and nothing came for any of them.

    A closed loop asks nothing while a target stalls, so percentiles hardly show a stall; this does.

    Args:
        records: how each request went.

    Returns:
        The time in milliseconds.
    """
    # How many more requests are under way from each moment on. A delivery changes nothing but breaks a silence.
    moments = [(record.sent, 1) for record in records]
    moments += [(record.ended, -1) for record in records]
    moments += [(at, 0) for record in records for at in record.deliveries]
    longest, under_way, before = 0.0, 0, 0.0
    for at, change in sorted(moments):
        if under_way and change <= 0:
            longest = max(longest, at - before)
        if change <= 0 or not under_way:  # what is sent into a silence does not break it
            before = at
        under_way += change
    return 1e3 * longest


def _total(counts: Iterable[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _rate(n: float, seconds: float) -> float:
    return n / seconds if seconds > 0 else 0.0
