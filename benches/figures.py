"""What all comparisons share: interleaved repeats, medians, and their bootstrap intervals."""

from __future__ import annotations

import random
from statistics import median
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

N_RESAMPLES = 10_000
Measured = TypeVar("Measured")


def interleave(
    ours: Callable[[], Measured], theirs: Callable[[], Measured], n_repeats: int
) -> list[tuple[Measured, Measured]]:
    """Measure two things in turn, A B B A and so on, so that a machine that slows down slows both.

    Args:
        ours: Measures the one.
        theirs: Measures the other.
        n_repeats: Pairs.

    Returns:
        The pairs, ours first.
    """
    pairs = []
    for repeat in range(n_repeats):
        if repeat % 2 == 0:
            ours_first = ours()
            pairs.append((ours_first, theirs()))
        else:
            theirs_first = theirs()
            pairs.append((ours(), theirs_first))
    return pairs


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median.

    Args:
        values: What was measured.

    Returns:
        Its ends.
    """
    resampling = random.Random(0)
    medians = sorted(median(resampling.choices(values, k=len(values))) for _ in range(N_RESAMPLES))
    return medians[int(0.025 * N_RESAMPLES)], medians[int(0.975 * N_RESAMPLES)]


def spread(values: Sequence[float], digits: int = 3) -> str:
    """A median with its interval, for people.

    Args:
        values: What was measured.
        digits: Behind the point.

    Returns:
        The text.
    """
    low, high = interval(values)
    return f"{median(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
