"""A result as a table for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_batch.benchmark.figures import Figures
    from llama_batch.benchmark.result import Result

__all__ = ["LATENCIES", "SHARES", "compared", "notes", "number", "summary", "table"]

LATENCIES = {
    "ttft_ms": "TTFT",
    "itl_ms": "ITL",
    "tpot_ms": "TPOT",
    "e2e_ms": "end to end",
    "queue_ms": "queue",
    "late_ms": "sent late",
}
"""Distributions of `Figures`, with what they are called."""
UNKNOWN = "-"
SHARES = ("mean", "p50", "p90", "p95", "p99", "max")


def number(value: float | None) -> str:
    """A number with as many digits as are read."""
    if value is None:
        return UNKNOWN
    value = round(value, 6)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def summary(result: Result) -> str:
    """A result in lines.

    Args:
        result: the result.

    Returns:
        The text.
    """
    figures = result.figures
    done = f"{figures.n_completed} of {figures.n_requests} requests complete in {figures.duration_s:.1f} s"
    lines = [f"{done} ({number(figures.requests_per_s)} per second)", _tokens(figures)]
    rows = [["milliseconds", *SHARES]]
    for name, title in LATENCIES.items():
        spread = getattr(figures, name)
        if spread is not None:
            rows.append([title, *(number(getattr(spread, share)) for share in SHARES)])
    lines += ["", *_aligned(rows), ""]
    if figures.goodput is not None:
        bounds = ", ".join(f"{name} ≤ {number(bound)} ms" for name, bound in figures.goodput.bounds_ms.items())
        lines.append(
            f"goodput ({bounds}): {figures.goodput.n_good} requests, {figures.goodput.share:.1%}, "
            f"{number(figures.goodput.requests_per_s)} per second"
        )
    lines += [f"failed ({count}): {reason}" for reason, count in figures.failures.items()]
    return "\n".join([*lines, *result.notes])


def _tokens(figures: Figures) -> str:
    if figures.output_tokens is None:
        return "tokens: the target did not count them"
    cached = f", {number(figures.cached_tokens)} of them cached" if figures.cached_tokens is not None else ""
    return (
        f"output {number(figures.output_tokens_per_s)} tokens/s ({number(figures.output_tokens)} tokens), "
        f"input {number(figures.input_tokens_per_s)} tokens/s ({number(figures.input_tokens)} tokens{cached})"
    )


def compared(results: Sequence[Result]) -> list[list[str]]:
    """The figures of several results side by side, with ratios to the first.

    Args:
        results: the results.

    Returns:
        Rows of a table, the first its head.
    """
    all_figures = [result.figures for result in results]
    head = ["", results[0].label]
    for result in results[1:]:
        head += [result.label, "÷ first"]
    rows = [head]

    def row(title: str, values: Sequence[float | None]) -> None:
        if all(value is None for value in values):
            return
        cells = [title, number(values[0])]
        for value in values[1:]:
            ratio = value / values[0] if value is not None and values[0] else None
            cells += [number(value), UNKNOWN if ratio is None else f"{ratio:.2f}"]
        rows.append(cells)

    row("complete", [figures.n_completed for figures in all_figures])
    row("failed", [figures.n_failed for figures in all_figures])
    row("output tokens/s", [figures.output_tokens_per_s for figures in all_figures])
    row("input tokens/s", [figures.input_tokens_per_s for figures in all_figures])
    row("cached tokens", [figures.cached_tokens for figures in all_figures])
    row("requests/s", [figures.requests_per_s for figures in all_figures])
    row("goodput, requests/s", [f.goodput.requests_per_s if f.goodput else None for f in all_figures])
    for name, title in LATENCIES.items():
        if name == "late_ms":
            continue  # the client's own, which its note tells where it matters
        for share in ("p50", "p95", "p99"):
            spreads = [getattr(figures, name) for figures in all_figures]
            row(f"{title} {share}, ms", [None if each is None else getattr(each, share) for each in spreads])
    row("longest silence, ms", [figures.longest_silence_ms for figures in all_figures])
    return rows


def notes(results: Sequence[Result]) -> list[str]:
    """What whoever compares results has to know.

    Args:
        results: the results, the first of them what others are compared with.

    Returns:
        Sentences, each with whom it is about.
    """
    first = results[0]
    told = []
    for result in results[1:]:
        differs = [name for name in ("workload", "arrivals") if getattr(result, name) != getattr(first, name)]
        if differs:
            other = " and ".join(f"other {name}" for name in differs)
            told.append(
                f"{result.label}: measured with {other} than {first.label}, so ratios compare different things."
            )
    return told + [f"{result.label}: {note}" for result in results for note in result.notes]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells under each other, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) if place == 0 else cell.rjust(width)
                  for place, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as text.

    Args:
        rows: the rows, the first the head.
    """
    return "\n".join(_aligned(rows))
