"""When conversations begin: as soon as a client is free, or at times of their own."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Arrivals", "ClosedLoop", "OpenLoop", "poisson"]


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that ask again as soon as they are answered.

    A target that stalls is asked less while it does, so latencies look better than what independent users would see
    (coordinated omission). Results say so, and tell the longest silence beside them.

    Attributes:
        concurrency: how many clients.
    """

    concurrency: int

    def describe(self) -> dict[str, Any]:
        """Itself, for a file."""
        return {"kind": "closed", "concurrency": self.concurrency}


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Conversations that begin at given times, whatever became of those before.

    Latencies count from these times, even where the client was late or held a request back.

    Attributes:
        offsets: when each begins, from the start of the run, ascending. Unit: seconds.
        kind: where the times are from: `poisson` or `trace`.
        rate: of Poisson arrivals. Unit: conversations per second.
        concurrency: conversations held at the same time at most; None has no such bound.
    """

    offsets: Sequence[float]
    kind: str = "trace"
    rate: float | None = None
    concurrency: int | None = None

    def describe(self) -> dict[str, Any]:
        """Itself, for a file; an infinite rate is null there."""
        rate = None if self.rate is None or math.isinf(self.rate) else self.rate
        return {"kind": self.kind, "rate": rate, "concurrency": self.concurrency}


Arrivals = ClosedLoop | OpenLoop


def poisson(rate: float, n: int, seed: int) -> list[float]:
    """Arrivals of a Poisson process, the same ones for the same seed.

    Args:
        rate: arrivals per second; infinity has all arrive at once.
        n: how many.
        seed: of the draws.

    Returns:
        The times, from 0 on, in seconds.

    Example:
        >>> poisson(2.0, 3, seed=0)  # three arrivals, half a second apart on average
    """
    if math.isinf(rate):
        return [0.0] * n
    drawn = random.Random(seed)  # noqa: S311 - a load, not a secret
    return list(itertools.accumulate((drawn.expovariate(rate) for _ in range(max(0, n - 1))), initial=0.0))[:n]
