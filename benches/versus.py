"""Our engine against llama-server: the same model, KV cells, threads and requests, in turn.

Each figure is compared with llama-server as it comes and, with --grid, with the best point of a grid of its settings.
Ours has its default options but for n_ctx, n_parallel (a slot for each client) and the threads, which both sides share.
The points of the grid are first surveyed, the leaders for each figure again, and the best one is measured in pairs with
ours:

    python benches/versus.py shared --model model.gguf --repeats 5 --grid

Two scenarios are ours alone: `sweep`, which holds the load of `oversubscription` in more and less memory, and `idle`,
which asks what cached conversations cost the running ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import figures
import frontier
import loads
import peer
import pressure
from llama_batch import LLAMA_CPP_BUILD, Engine
from llama_server import LlamaServer
from loads import Load, Writer
from outcomes import Outcome, summary
from scenarios import SCENARIOS, Budgets, Figure, Point, Scenario, grid
from shaped import model_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from loads import Side

SEED = 7
N_LEADERS = 3
N_AGAIN = 2


@dataclass(frozen=True, slots=True)
class Compared:
    """Pairs of measurements, ours and theirs with the settings of a point."""

    point: Point
    pairs: list[tuple[Outcome, Outcome]]
    scores: list[dict[str, Any]]
    missed: bool


@dataclass(frozen=True, slots=True)
class Bench:
    """Both sides, ready to be measured. Each measurement has a fresh engine or server."""

    model: Path
    binary: Path
    n_threads: int
    hold: Callable[[Side, Load], Coroutine[Any, Any, Outcome]] = loads.hold

    def ours(self, load: Load, **options: Any) -> Outcome:
        """Measure ours, with its defaults but for what is given."""
        shared = {"n_ctx": load.n_ctx, "n_parallel": load.n_clients, "n_threads": self.n_threads}

        async def serve() -> Outcome:
            async with Engine(self.model, **{**shared, **options}) as engine:
                return await self.hold(loads.Ours(engine), load)

        return asyncio.run(serve())

    def arguments(self, load: Load, point: Point) -> list[str]:
        """What llama-server gets."""
        shared = {"-m": self.model, "-c": load.n_ctx, "-t": self.n_threads, "-tb": self.n_threads}
        return [word for name, value in shared.items() for word in (name, str(value))] + list(point)

    def theirs(self, load: Load, point: Point) -> Outcome:
        """Measure llama-server with the settings of a point."""
        with LlamaServer(self.binary, self.arguments(load, point)) as server:
            return asyncio.run(self.hold(server, load))


def title(point: Point) -> str:
    """A point's name."""
    return shlex.join(point) or "defaults"


def survey(bench: Bench, load: Load, scenario: Scenario, points: list[Point]) -> dict[Point, list[Outcome]]:
    """Measure each point of the grid once, then the leaders for each figure again, and print what came out."""
    surveyed = {}
    for number, point in enumerate(points):
        surveyed[point] = [bench.theirs(load, point)]
        n_tokens = surveyed[point][0].tokens_per_s
        print(f"  {number + 1}/{len(points)} {title(point)}: {n_tokens:.1f} tokens/s", flush=True)
    leaders = {
        point
        for figure in scenario.figures
        for point in sorted(points, key=lambda point: figure.loss(surveyed[point]))[:N_LEADERS]
    }
    for _ in range(N_AGAIN):
        for point in points:
            if point in leaders:
                surveyed[point].append(bench.theirs(load, point))
    print(f"\n| grid | runs | {' | '.join(figure.name for figure in scenario.figures)} | completed |")
    print("|" + "---|" * (len(scenario.figures) + 3))
    for point, outcomes in surveyed.items():
        medians = " | ".join(f"{median(map(figure.of, outcomes)):.3f}" for figure in scenario.figures)
        n_completed = min(outcome.n_completed for outcome in outcomes)
        print(f"| `{title(point)}` | {len(outcomes)} | {medians} | {n_completed} of {load.n_requests} |")
    print()
    return surveyed


def compare(bench: Bench, load: Load, point: Point, budgets: Budgets, n_repeats: int) -> Compared:
    """Measure ours and one setting of theirs in turn, and print it.

    Args:
        bench: Measures.
        load: What to send.
        point: Their settings.
        budgets: Figures to print, with what each ratio has to be.
        n_repeats: Pairs.

    Returns:
        What was measured.
    """
    print(f"llama-server {shlex.join(bench.arguments(load, point))}", flush=True)
    pairs = figures.interleave(lambda: bench.ours(load), lambda: bench.theirs(load, point), n_repeats)
    scores = []
    print("\n| figure | ours, median [95 %] | llama-server | ours ÷ theirs | budget |\n|---|---|---|---|---|")
    for figure, budget in budgets:
        ratios = [ratio(figure.of(mine), figure.of(other)) for mine, other in pairs]
        sides = " | ".join(
            figures.spread([figure.of(outcome) for outcome in side], 2) for side in zip(*pairs, strict=True)
        )
        bound = "none" if budget is None else f"{'≥' if figure.rises else '≤'} {budget:.2f}"
        verdict = ", missed" if figure.missed(ratios, budget) else ""
        scores.append(score(figure, pairs, ratios, budget))
        print(f"| {figure.name} | {sides} | {figures.spread(ratios, 2)} | {bound}{verdict} |")
    print()
    for name, side in zip(("ours", "theirs"), zip(*pairs, strict=True), strict=True):
        print(f"{name}: {summary(side)}")
    print(flush=True)
    incomplete = not all(mine.complete for mine, _ in pairs)
    return Compared(point, pairs, scores, incomplete or any(each["missed"] for each in scores))


def score(
    figure: Figure, pairs: list[tuple[Outcome, Outcome]], ratios: list[float], budget: float | None
) -> dict[str, Any]:
    """A figure of a comparison, for a file."""
    low, high = figures.interval(ratios)
    return {
        "figure": figure.name,
        "ours": median(figure.of(mine) for mine, _ in pairs),
        "theirs": median(figure.of(other) for _, other in pairs),
        "ratio": median(ratios),
        "interval": [low, high],
        "rises": figure.rises,
        "budget": budget,
        "missed": figure.missed(ratios, budget),
    }


def ratio(ours: float, theirs: float) -> float:
    """One over the other, where a side may have completed nothing (0) or never begun (infinity)."""
    return math.inf if math.isinf(ours) or not theirs else ours / theirs


def versus(name: str, bench: Bench, load: Load, chosen: argparse.Namespace) -> dict[str, Any]:
    """Run a scenario against llama-server by default, with --peer, and with the best of the grid.

    Args:
        name: The scenario.
        bench: Measures.
        load: What to send.
        chosen: The command line.

    Returns:
        All figures, for a file.
    """
    scenario = SCENARIOS[name]
    defaults = [(figure, figure.defaults) for figure in scenario.figures]
    compared = [compare(bench, load, (), defaults, chosen.repeats)]
    for words in chosen.peer:
        free: Budgets = [(figure, None) for figure in scenario.figures]
        compared.append(compare(bench, load, tuple(shlex.split(words)), free, chosen.repeats))
    surveyed: dict[Point, list[Outcome]] = {}
    traded: dict[str, Any] = {"missed": False}
    points = list(grid(load, scenario.batches)) if chosen.grid else []
    if chosen.grid and scenario.batches:
        traded = frontier.frontier(bench, load, points[::4] if chosen.quick else points, chosen.repeats)
    elif chosen.grid:
        surveyed = survey(bench, load, scenario, points[:: len(points) // 2] if chosen.quick else points)
        # Among those that ran more than once: of many single runs the best is the luckiest.
        leaders = [point for point, outcomes in surveyed.items() if len(outcomes) > 1]
        best = {figure: min(leaders, key=lambda point: figure.loss(surveyed[point])) for figure in scenario.figures}
        for point in dict.fromkeys(best.values()):
            led = [(figure, figure.grid) for figure in scenario.figures if best[figure] == point]
            compared.append(compare(bench, load, point, led, chosen.repeats))
    return {
        "missed": any(each.missed for each in compared) or traded["missed"],
        "frontier": traded,
        "compared": [
            {
                "arguments": bench.arguments(load, each.point),
                "against": "defaults" if each.point == () else "grid" if each.point in surveyed else "given",
                "scores": each.scores,
                "pairs": [[asdict(side) for side in pair] for pair in each.pairs],
            }
            for each in compared
        ],
        "grid": [
            {"arguments": bench.arguments(load, point), "outcomes": [asdict(outcome) for outcome in outcomes]}
            for point, outcomes in surveyed.items()
        ],
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=[*SCENARIOS, "sweep", "idle"])
    parser.add_argument("--model", default=None, help="path, URI, or shaped:0.5B, :1B, :8B; default: SmolLM2")
    parser.add_argument("--repeats", type=int, default=None, help="pairs of runs, in turn (default: 5; 1 if --quick)")
    parser.add_argument("--grid", action="store_true", help="compare with the best point of a grid too")
    parser.add_argument("--peer", action="append", default=[], help='further settings, as in --peer="-np 16 -kvu"')
    parser.add_argument("--quick", action="store_true", help="tiny loads that only show that everything works")
    parser.add_argument("--threads", type=int, default=cores, help="threads that compute (default: one for each core)")
    parser.add_argument("--openmp", action=argparse.BooleanOptionalAction, default=True, help="in their build")
    parser.add_argument("--server-binary", type=Path, default=None, help="a llama-server that is there already")
    parser.add_argument("--json", type=Path, default=None, help="write all figures here")
    chosen = parser.parse_args()
    chosen.repeats = chosen.repeats or (1 if chosen.quick else 5)
    return chosen


def main() -> int:
    """Measure a scenario and print its tables.

    Returns:
        1 where a ratio is beyond its budget with its whole interval, or ours left a request incomplete.
    """
    chosen = arguments()
    model = model_of(chosen.model)
    print(f"{chosen.scenario}: {model.name}, {LLAMA_CPP_BUILD}, {chosen.threads} threads", flush=True)
    if chosen.scenario == "idle":
        kept = pressure.idle(model, chosen.threads, chosen.repeats, chosen.quick)
    else:
        alone = chosen.scenario == "sweep"
        binary = Path() if alone else chosen.server_binary or peer.build(openmp=chosen.openmp, target=peer.SERVER)
        scenario = SCENARIOS["oversubscription" if alone else chosen.scenario]
        bench = Bench(model, binary, chosen.threads, scenario.hold)
        with Engine(model, n_ctx=512, n_parallel=1) as engine:  # only for its vocabulary
            load = scenario.load(Writer(engine.model, SEED), chosen.quick)
        print(load.describe(), flush=True)
        if alone:
            kept = pressure.sweep(bench.ours, load, chosen.repeats)
        else:
            kept = versus(chosen.scenario, bench, load, chosen)
    if chosen.json:
        kept = {"scenario": chosen.scenario, "model": model.name, "build": LLAMA_CPP_BUILD, **kept}
        chosen.json.write_text(json.dumps(kept, indent=1))
    return int(kept["missed"])


if __name__ == "__main__":
    sys.exit(main())
