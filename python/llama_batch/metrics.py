"""What an engine measures: histograms of times and tokens, and counts, all since its start.

The engine keeps them whether or not anybody looks, and looking makes nobody wait. Names and buckets are vLLM's where it
has them; `llama_batch.prometheus` writes them as a Prometheus scrape.

A request is one answer: of `n` answers to a prompt each is a request. What was refused (a full queue, a prompt that
cannot be one, a grammar that is wrong) never became a request that could end: it is counted in `failures` only.

Example:
    >>> metrics = engine.metrics()
    >>> metrics.finished["max_tokens"], metrics.inter_token_latency.quantile(0.95)
    (40, 0.0131)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from llama_batch.errors import OptionError
from llama_batch.types import Stats

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Histogram", "Metrics", "TierMetrics"]

_HISTOGRAMS = (
    "time_to_first_token",
    "inter_token_latency",
    "e2e_request_latency",
    "request_queue_time",
    "request_inference_time",
    "request_prefill_time",
    "request_decode_time",
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens",
)


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often values fell into which bucket.

    Attributes:
        buckets: upper bounds, ascending, each included. Unit: seconds of times, else tokens.
        counts: values in each bucket alone (above the bound before it), and one more: those above all bounds.
        sum: all values together. Read while values come, it may hold one that is not counted yet.
    """

    buckets: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """Estimate a quantile, as Prometheus does: as if values were spread evenly over their bucket.

        Args:
            q: which, from 0 to 1; 0.5 is the median.

        Returns:
            The estimate, in the unit of the buckets; the last bound for what is above all of them, and `nan` where
            there are no values.

        Raises:
            OptionError: `q` is not between 0 and 1.

        Example:
            >>> Histogram((0.1, 0.2), (0, 4, 0), 0.6).quantile(0.5)
            0.15
        """
        _check_fraction(q)
        rank, below, lower = q * self.count, 0, 0.0
        if self.count == 0:
            return float("nan")
        for upper, count in zip(self.buckets, self.counts, strict=False):
            if count > 0 and below + count >= rank:
                return lower + (upper - lower) * max(rank - below, 0) / count
            below += count
            lower = upper
        return self.buckets[-1]


def _check_fraction(q: object) -> None:
    if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
        raise OptionError(f"a quantile is a number from 0 to 1, not {q!r}")


@dataclass(frozen=True, slots=True)
class TierMetrics:
    """What moved in a cache tier below the KV cells, by operation: "save", "restore", "evict", "fail".

    Attributes:
        tokens: of the blocks that moved. Unit: tokens.
        bytes: the size of their state. Unit: bytes.
    """

    tokens: Mapping[str, int]
    bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Metrics:
    """All that an engine measured since its start.

    Attributes:
        stats: figures of the moment, and what `Engine.stats` counts.
        time_to_first_token: from the submission to the first token, the queue included, of requests that got one; seen
            as soon as it is drawn. Unit: seconds.
        inter_token_latency: from a token of a request to its next, as they are drawn. Unit: seconds.
        e2e_request_latency: from the submission to the end, of every request that ended, however. Unit: seconds.
        request_queue_time: of that, the wait for a slot; all of it where none was had. Unit: seconds.
        request_inference_time: from the slot to the end, of requests that had one. Unit: seconds.
        request_prefill_time: from the slot to the first token, or to the end without one. Unit: seconds.
        request_decode_time: from the first token to the last, of requests that generated one. Unit: seconds.
        request_prompt_tokens: prompts of requests that ended. Unit: tokens.
        request_generation_tokens: answers of requests that ended. Unit: tokens.
        iteration_tokens: rows of each forward pass. Unit: tokens.
        finished: requests that ended, by how: "eog", "stop", "max_tokens", "context_full", "cancelled", "timeout",
            "error" or "embedded".
        failures: requests that failed or were refused, by the `code` of the error.
        n_prompt_tokens: prompts of requests that got a slot, what was reused of them included. Unit: tokens.
        n_prefix_cache_queries: of those, what was looked for in the cache. Unit: tokens.
        prefix_cache_hits: of those, what was found, by where: "own" (the session's own last sequence), "donor"
            (another's), "ram" or "disk". Unit: tokens.
        tiers: what moved in the tiers below the KV cells, "ram" and "disk".
        n_busy_slots: slots that had rows in a pass, summed over all passes (`stats.n_ticks`).
        n_tokens_max: the longest request that ended, prompt and answer. Unit: tokens.
        eval_s: all forward passes. Unit: seconds.
        sample_s: all draws after them. Unit: seconds.
    """

    stats: Stats
    time_to_first_token: Histogram
    inter_token_latency: Histogram
    e2e_request_latency: Histogram
    request_queue_time: Histogram
    request_inference_time: Histogram
    request_prefill_time: Histogram
    request_decode_time: Histogram
    request_prompt_tokens: Histogram
    request_generation_tokens: Histogram
    iteration_tokens: Histogram
    finished: Mapping[str, int]
    failures: Mapping[str, int]
    n_prompt_tokens: int
    n_prefix_cache_queries: int
    prefix_cache_hits: Mapping[str, int]
    tiers: Mapping[str, TierMetrics]
    n_busy_slots: int
    n_tokens_max: int
    eval_s: float
    sample_s: float

    @classmethod
    def from_native(cls, native: Mapping[str, Any]) -> Self:
        """Make them of what the extension module gives.

        Args:
            native: the fields by name: `stats` as a mapping, each histogram as its three fields.

        Returns:
            The metrics.

        Example:
            >>> Metrics.from_native(engine.native.metrics())
        """
        fields = dict(native)
        fields["stats"] = Stats.from_native(fields["stats"])
        fields["tiers"] = {tier: TierMetrics(*flow) for tier, flow in fields["tiers"].items()}
        fields.update({name: Histogram(*fields[name]) for name in _HISTOGRAMS})
        return cls(**fields)
