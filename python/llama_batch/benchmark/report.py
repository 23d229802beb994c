"""Results as one page of HTML, pictures and all: no script, nothing from the network, light or dark."""

from __future__ import annotations

import json
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from llama_batch.benchmark import charts
from llama_batch.benchmark.errors import BenchmarkError
from llama_batch.benchmark.style import STYLE
from llama_batch.benchmark.text import LATENCIES, SHARES, compared, notes, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_batch.benchmark.charts import Series
    from llama_batch.benchmark.figures import Figures
    from llama_batch.benchmark.record import Record
    from llama_batch.benchmark.result import Result

__all__ = ["page"]

N_BINS = 120
PICTURES = {
    "ttft_ms": "Time to the first token",
    "itl_ms": "Inter-token latency",
    "tpot_ms": "Time per output token",
    "e2e_ms": "End to end",
}


def page(results: Sequence[Result]) -> str:
    """A page about one result, or several side by side, with ratios to the first.

    Args:
        results: the results.

    Returns:
        The HTML.

    Raises:
        BenchmarkError: there are more results than colours that can be told apart.
    """
    if len(results) > charts.MAX_SERIES:
        raise BenchmarkError(f"at most {charts.MAX_SERIES} results fit one report, not {len(results)}")
    title = escape(" · ".join(result.label for result in results))
    body = [f"<h1>{title}</h1>", _subtitle(results)]
    if len(results) == 1:
        body += [_tiles(results[0].figures), _notes(results)]
    else:
        body += [
            _legend([result.label for result in results]),
            _notes(results),
            _table("Side by side", compared(results)),
        ]
    body.append(_latencies(results))
    body += [_timeline(result, len(results) > 1) for result in results]
    if len(results) == 1:
        body.append(_table("Latencies, milliseconds", _spreads(results[0].figures)))
    body += [_failures(results), _settings(results)]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _subtitle(results: Sequence[Result]) -> str:
    said = "; ".join(dict.fromkeys(f"{_who(result)}, {_arrivals(result.arrivals)}" for result in results))
    return f'<p class="sub">{escape(said)} · {escape(results[0].measured_at)}</p>'


def _who(result: Result) -> str:
    where = "in process" if result.target.get("kind") == "engine" else str(result.target.get("url", ""))
    return f"{result.target.get('model', '?')} {where}".strip()


def _arrivals(arrivals: dict[str, Any]) -> str:
    match arrivals.get("kind"):
        case "closed":
            return f"closed loop of {arrivals.get('concurrency')}"
        case "poisson":
            rate = arrivals.get("rate")
            return "all at once" if rate is None else f"Poisson arrivals, {rate:g} per second"
        case kind:
            return f"{kind}"


def _tiles(figures: Figures) -> str:
    tiles: list[tuple[str, str, str]] = [
        ("Output", number(figures.output_tokens_per_s), "tokens/s"),
        ("Input", number(figures.input_tokens_per_s), "tokens/s"),
        ("Complete", f"{figures.n_completed} of {figures.n_requests}", "requests"),
    ]
    for name, title in (("ttft_ms", "TTFT"), ("itl_ms", "ITL")):
        spread = getattr(figures, name)
        if spread is not None:
            tiles.append((f"{title} p50 · p95", f"{number(spread.p50)} · {number(spread.p95)}", "ms"))
    if figures.goodput is not None:
        bounds = ", ".join(f"{name} ≤ {number(bound)} ms" for name, bound in figures.goodput.bounds_ms.items())
        tiles.append(("Goodput", f"{figures.goodput.share:.1%}", bounds))
    if figures.cached_tokens is not None and figures.input_tokens:
        tiles.append(("Prompt cached", f"{figures.cached_tokens / figures.input_tokens:.0%}", "of input tokens"))
    cells = (
        f'<div class="tile"><div class="name">{escape(name)}</div><div class="value">{escape(value)}</div>'
        f'<div class="name">{escape(unit)}</div></div>'
        for name, value, unit in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _legend(names: Iterable[str]) -> str:
    items = (f'<li><span class="key k{colour}"></span>{escape(name)}</li>' for colour, name in enumerate(names))
    return f'<ul class="legend">{"".join(items)}</ul>'


def _notes(results: Sequence[Result]) -> str:
    items = [f"<li>{escape(note)}</li>" for note in (notes(results) if len(results) > 1 else results[0].notes)]
    return f'<ul class="notes">{"".join(items)}</ul>' if items else ""


def _figure(title: str, picture: str, legend: str = "") -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{legend}{picture}</figure>" if picture else ""


def _latencies(results: Sequence[Result]) -> str:
    """The distributions of latencies, a picture each."""
    figures = []
    for name, title in PICTURES.items():
        series = [
            charts.Series(result.label, _values(result.records, name), colour=colour)
            for colour, result in enumerate(results)
        ]
        figures.append(_figure(title, charts.cdf(title, series)))
    dots = "Share of requests (of gaps, for inter-token latency) that took no longer; dots at p50, p95, p99."
    return (
        f'<h2>Latencies</h2><p class="sub">{dots}</p><div class="grid2">{"".join(figures)}</div>'
        if any(figures)
        else ""
    )


def _values(records: Sequence[Record], name: str) -> list[float]:
    done = [record for record in records if record.complete]
    if name == "itl_ms":
        return [gap for record in done for gap in record.itls_ms]
    return [value for record in done if (value := getattr(record, name)) is not None]


def _timeline(result: Result, named: bool) -> str:
    """How many requests were under way, and what came, over time."""
    records = result.records
    end = max((record.ended for record in records), default=0.0)
    asked = _level(
        [(record.sent, 1) for record in records] + [(record.ended, -1) for record in records], "under way", 0
    )
    answered = [record for record in records if record.deliveries]
    streams = _level(
        [(record.deliveries[0], 1) for record in answered] + [(record.ended, -1) for record in answered], "streaming", 1
    )
    streams = replace(streams, is_area=True)
    title = f"Timeline: {result.label}" if named else "Timeline"
    pictures = [
        _figure(
            "Requests under way",
            charts.lines("requests under way", [streams, asked], "requests", end),
            _legend(["under way", "streaming: its first token is there"]),
        ),
        _figure(
            "Tokens generated", charts.lines("tokens per second", [_rate(answered, end)], "tokens per second", end)
        ),
    ]
    return f'<h2>{escape(title)}</h2><div class="grid2">{"".join(pictures)}</div>' if any(pictures) else ""


def _level(changes: list[tuple[float, int]], name: str, colour: int) -> Series:
    """A count over time, from its changes."""
    at, heights, height = [0.0], [0.0], 0
    for moment, change in sorted(changes):
        height += change
        at.append(moment)
        heights.append(float(height))
    return charts.Series(name, heights if changes else (), at if changes else (), colour)


def _rate(records: Sequence[Record], end: float) -> Series:
    """Tokens per second, in bins of the same width; a request's tokens are spread over its deliveries."""
    if end <= 0 or not records:
        return charts.Series("tokens/s", ())
    width = end / N_BINS
    bins = [0.0] * N_BINS
    for record in records:
        each = (record.n_output if record.n_output is not None else len(record.deliveries)) / len(record.deliveries)
        for at in record.deliveries:
            bins[min(N_BINS - 1, max(0, int(at / width)))] += each / width
    return charts.Series("tokens/s", bins, [index * width for index in range(N_BINS)])


def _spreads(figures: Figures) -> list[list[str]]:
    rows = [["", "n", *SHARES]]
    for name, title in LATENCIES.items():
        spread = getattr(figures, name)
        if spread is not None:
            rows.append([title, str(spread.n), *(number(getattr(spread, share)) for share in SHARES)])
    rows.append(["longest silence", "", "", "", "", "", "", number(figures.longest_silence_ms)])
    return rows


def _table(title: str, rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>"
        for row in rows[1:]
    )
    return (
        f'<h2>{escape(title)}</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _failures(results: Sequence[Result]) -> str:
    rows = [
        [result.label, str(count), reason] for result in results for reason, count in result.figures.failures.items()
    ]
    return (
        _table("Failures", [["", "requests", "reason"], *rows]).replace("<table>", '<table class="words">')
        if rows
        else ""
    )


def _settings(results: Sequence[Result]) -> str:
    """All that was set, so that somebody else can measure the same."""
    parts = []
    for result in results:
        kept = {
            "measured_at": result.measured_at,
            "target": result.target,
            "arrivals": result.arrivals,
            "workload": result.workload,
            "machine": result.machine,
        }
        shown = escape(json.dumps(kept, indent=1, ensure_ascii=False, default=str))
        parts.append(f"<details><summary>{escape(result.label)}</summary><pre>{shown}</pre></details>")
    return f"<h2>Settings</h2>{''.join(parts)}"
