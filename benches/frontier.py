"""What streams suffer from a long prompt against how long that prompt takes: both sides, at several settings.

A setting may trade the one for the other; one that has less of both is simply better. Ours has to have, with its
defaults, no such setting of llama-server's against it, whatever sizes of batches that gets.
"""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from llama_batch import START_OPTIONS

if TYPE_CHECKING:
    from loads import Load
    from outcomes import Outcome
    from scenarios import Point
    from versus import Bench

BOUND = "max_itl_ms"
BOUNDS_MS = (0, 50, 100, 500)
"""Of ours, beside the default. Its medians may be larger than its bound, which `N_MEDIANS` of them may be."""
N_MEDIANS = 3


def frontier(bench: Bench, load: Load, points: list[Point], n_repeats: int) -> dict[str, Any]:
    """Measure all settings in turn, and print which are worth having.

    Args:
        bench: Measures.
        load: Streams, and a long prompt that comes later.
        points: Settings of llama-server.
        n_repeats: Rounds over all settings.

    Returns:
        All figures, for a file.
    """
    options: list[dict[str, Any]] = [{}]
    if BOUND in START_OPTIONS:
        options += [{BOUND: bound} for bound in BOUNDS_MS if bound != START_OPTIONS[BOUND].default]
    ours: list[list[Outcome]] = [[] for _ in options]
    theirs: list[list[Outcome]] = [[] for _ in points]
    for turn in range(n_repeats):
        measured = [(ours[i], lambda i=i: bench.ours(load, **options[i])) for i in range(len(options))]
        measured += [(theirs[i], lambda i=i: bench.theirs(load, points[i])) for i in range(len(points))]
        for kept, measure in measured if turn % 2 == 0 else reversed(measured):
            kept.append(measure())
    rows = [(f"ours {_title(each)}", outcomes) for each, outcomes in zip(options, ours, strict=True)]
    rows += [
        (f"llama-server {' '.join(each) or 'defaults'}", found) for each, found in zip(points, theirs, strict=True)
    ]
    print("\n| setting | worst ITL of a stream, s | TTFT of the long prompt, s | completed |\n|---|---|---|---|")
    for name, outcomes in rows:
        n_completed = min(outcome.n_completed for outcome in outcomes)
        worst, late = _place(outcomes)
        print(f"| {name} | {worst:.3f} | {late:.2f} | {n_completed} of {load.n_requests} |")
    better = [name for (name, outcomes) in rows[len(options) :] if beats(_place(outcomes), _place(ours[0]))]
    print(f"\nbetter than ours in both: {', '.join(better) or 'none'}; budget: none" + (", missed" if better else ""))
    is_bounded = _tell_bound(ours[0])
    return {
        "missed": bool(better) or not is_bounded or not all(outcome.complete for outcome in ours[0]),
        "better": better,
        "is_bounded": is_bounded,
        "settings": {name: [asdict(outcome) for outcome in outcomes] for name, outcomes in rows},
    }


def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether one place has less of both.

    Args:
        one: The worst gap and the time to the first token.
        other: Those of another.
    """
    return one[0] < other[0] and one[1] < other[1]


def _place(outcomes: list[Outcome]) -> tuple[float, float]:
    """The worst gap and the long prompt's time, medians."""
    return median(each.worst_itl_s for each in outcomes), median(each.ttft_p50_s for each in outcomes)


def _tell_bound(outcomes: list[Outcome]) -> bool:
    """Print whether the worst gap keeps to the option's bound; true where there is no such option yet."""
    worst = median(each.worst_itl_s for each in outcomes)
    usual = median(each.itl_p50_s for each in outcomes)
    if BOUND not in START_OPTIONS:
        print(f"worst ITL {1e3 * worst:.0f} ms, median {1e3 * usual:.0f} ms; this build has no {BOUND}")
        return True
    default = START_OPTIONS[BOUND].default
    assert isinstance(default, int | float)
    bound = max(default / 1e3, N_MEDIANS * usual)
    verdict = "" if worst <= bound else ", missed"
    print(f"worst ITL {1e3 * worst:.0f} ms, budget: {BOUND} or {N_MEDIANS} medians, {1e3 * bound:.0f} ms{verdict}")
    return worst <= bound


def _title(options: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items()) or "defaults"
