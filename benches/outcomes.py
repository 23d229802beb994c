"""What one measurement of benches/versus.py gave: figures of answers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from llama_batch.benchmark import percentile as of_some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_server import Answer


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one measurement gave.

    Attributes:
        tokens_per_s: Tokens of complete answers, from the first request to the last answer.
        ttft_p50_s: Time to the first token, median.
        ttft_p95_s: Its 95th percentile.
        n_completed: Requests that were answered in full.
        n_requests: Requests that there were.
        n_tokens: Tokens of complete answers.
        n_cached: Prompt tokens that were reused.
        failures: Why the others failed, each reason once.
        itl_p50_s: Gap between two arrivals of tokens of one stream, median; of the streams that a scenario watches.
        worst_itl_s: The longest of these gaps.
        decode_per_s: Tokens per second while all streams decode; 0 where they never all do.
    """

    tokens_per_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    n_completed: int
    n_requests: int
    n_tokens: int
    n_cached: int
    failures: list[str]
    itl_p50_s: float = math.inf
    worst_itl_s: float = math.inf
    decode_per_s: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether every request was answered in full."""
        return self.n_completed == self.n_requests


def outcome_of(
    answers: Sequence[Answer], newcomers: Sequence[Answer], streams: Sequence[Answer], start: float, n_requests: int
) -> Outcome:
    """Sum up answers.

    Args:
        answers: All of them.
        newcomers: Those whose time to the first token counts.
        streams: Those whose gaps between tokens count.
        start: When the first was asked.
        n_requests: How many there were to be.

    Returns:
        The figures.
    """
    complete = [answer for answer in answers if answer.failure is None]
    ttfts = sorted(answer.ttft_s for answer in newcomers if answer.ttft_s is not None)
    gaps = sorted(later - at for answer in streams for at, later in pairwise(sorted(set(answer.times))))
    n_tokens = sum(answer.n_tokens for answer in complete)
    return Outcome(
        tokens_per_s=n_tokens / (max(answer.ended for answer in answers) - start),
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p95_s=percentile(ttfts, 0.95),
        n_completed=len(complete),
        n_requests=n_requests,
        n_tokens=n_tokens,
        n_cached=sum(answer.n_cached for answer in complete),
        failures=sorted({answer.failure for answer in answers if answer.failure is not None}),
        itl_p50_s=percentile(gaps, 0.5),
        worst_itl_s=gaps[-1] if gaps else math.inf,
        decode_per_s=together(streams),
    )


def together(streams: Sequence[Answer]) -> float:
    """Tokens per second in the window in which all streams decode, from their first tokens on to the first end.

    Args:
        streams: The streams.

    Returns:
        The rate; 0 where there is no such window.
    """
    if not streams or not all(stream.times for stream in streams):
        return 0.0
    start, end = max(stream.times[0] for stream in streams), min(stream.times[-1] for stream in streams)
    n_tokens = sum(start < at <= end for stream in streams for at in stream.times)
    return n_tokens / (end - start) if end > start else 0.0


def summary(outcomes: Sequence[Outcome]) -> str:
    """What a table of ratios leaves out: whether both sides did the same work.

    Args:
        outcomes: One side's.

    Returns:
        The text.
    """
    completed = ", ".join(str(outcome.n_completed) for outcome in outcomes)
    n_tokens, n_cached = (median(getattr(outcome, name) for outcome in outcomes) for name in ("n_tokens", "n_cached"))
    reasons = sorted({reason for outcome in outcomes for reason in outcome.failures})
    done = (
        f"{completed} of {outcomes[0].n_requests} completed, {n_tokens:.0f} tokens, {n_cached:.0f} prompt tokens reused"
    )
    return "; ".join([done, *reasons])


def percentile(ascending: Sequence[float], share: float) -> float:
    """The value that a share of all does not exceed.

    Args:
        ascending: The values, in order.
        share: From 0 to 1.

    Returns:
        One of the values; infinity where there are none, since what never came came late.
    """
    return of_some(ascending, share) if ascending else math.inf
